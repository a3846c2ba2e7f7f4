use super::Config;

/// Positions that memory is reserved for before they come: what a file claims about its context is not believed.
const MOST_RESERVED: usize = 4096;

/// Keys and values of all positions seen so far, layer by layer.
#[derive(Clone, Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
    kv_width: usize,
}

/// Keys (turned to their positions) and values of one layer, one row a position.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl Cache {
    /// An empty cache with room for `capacity` positions (memory for 4,096 at most); it grows when more come.
    pub fn new(config: &Config, capacity: usize) -> Self {
        let kv_width = config.kv_heads * config.head_dim;
        let numbers = capacity.min(config.max_positions).min(MOST_RESERVED) * kv_width;
        let layer = |_| LayerCache { keys: Vec::with_capacity(numbers), values: Vec::with_capacity(numbers) };
        Self { layers: (0..config.layers).map(layer).collect(), kv_width }
    }

    /// Positions seen so far.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.keys.len() / self.kv_width)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn layer(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }
}
