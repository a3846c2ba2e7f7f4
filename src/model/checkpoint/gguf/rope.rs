use super::config::Metadata;
use crate::model::config::ConfigError;
use crate::ops::Dtype;
use crate::ops::dtype::dequantise;
use crate::ops::rope::{Frequencies, Scaling};

/// Factors of frequencies, as Llama 3.1 and later models have them.
const FACTORS: &str = "rope_freqs.weight";
/// The constants of Llama 3.1 and 3.2 that a file does not state; the factor is the largest of the tensor.
const LLAMA3: (f64, f64, f64) = (1.0, 4.0, 8192.0);
/// Largest relative difference of a stored factor, an f32 that was computed in f32.
const FACTOR_TOLERANCE: f64 = 1e-4;

/// The scaling of the rotary embedding, from metadata or from the tensor of factors.
pub(super) fn scaling(metadata: &Metadata, theta: f64, head_dim: usize) -> Result<Scaling, ConfigError> {
    let key = metadata.key("rope.scaling.type");
    let kind = metadata.read(&key, "text", |value| value.str().map(str::to_owned))?;
    let factor = factor(metadata)?;
    let has_factors = metadata.gguf.tensors.contains_key(FACTORS);
    match kind.as_deref() {
        None | Some("none") if has_factors => llama3(metadata, theta, head_dim),
        None | Some("linear") => Ok(factor.map_or(Scaling::Unscaled, |factor| Scaling::Linear { factor })),
        Some("none") => Ok(Scaling::Unscaled),
        Some(other) => Err(ConfigError::invalid(&key, other, "none and linear are known")),
    }
}

/// The factor of a linear scaling; 0 and 1 stand for none.
fn factor(metadata: &Metadata) -> Result<Option<f64>, ConfigError> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        match metadata.optional_real(key)? {
            None => {}
            Some(0.0 | 1.0) => {}
            Some(factor) if factor.is_finite() && factor > 0.0 => return Ok(Some(factor)),
            Some(factor) => {
                let rule = "it must be positive and finite";
                return Err(ConfigError::invalid(&metadata.key(key), factor, rule));
            }
        }
    }
    Ok(None)
}

/// Llama 3's scaling, where the factors are those that it gives.
fn llama3(metadata: &Metadata, theta: f64, head_dim: usize) -> Result<Scaling, ConfigError> {
    let rule = "it must hold the factors of Llama 3.1 or 3.2, one f32 for each pair of a head";
    let refused = || ConfigError::invalid(FACTORS, "a tensor of frequency factors", rule);
    let tensor = &metadata.gguf.tensors[FACTORS];
    if tensor.dtype != Dtype::F32 || tensor.shape != [head_dim / 2] {
        return Err(refused());
    }
    let mut factors = vec![0.0; head_dim / 2];
    dequantise(Dtype::F32, tensor.bytes.as_slice(), &mut factors);
    let factor = factors.iter().fold(0.0f32, |most, factor| most.max(*factor));
    let (low, high, original) = LLAMA3;
    let scaling = Scaling::Llama3 { factor: f64::from(factor), low, high, original };
    let plain = Frequencies::unscaled(theta).values(head_dim);
    let scaled = Frequencies { theta, scaling }.values(head_dim);
    let close = |(factor, (plain, scaled)): (&f32, (f64, f64))| {
        (f64::from(*factor) * scaled / plain - 1.0).abs() <= FACTOR_TOLERANCE
    };
    let all_close = factors.iter().zip(plain.into_iter().zip(scaled)).all(close);
    if all_close { Ok(scaling) } else { Err(refused()) }
}
