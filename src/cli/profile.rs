use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use lapidary::compress::batch::{Report, Step};
use lapidary::compress::journal::Record;
use lapidary::compress::observer::{Event, Observer, Stage};

use super::table::Table;

/// Where the time of a pack run goes: hears what it reports, and hands it on.
pub struct Profile<'a> {
    next: &'a dyn Observer,
    state: Mutex<State>,
}

struct State {
    since: Instant,
    /// The stage under way, and its block.
    stage: Option<(usize, Stage)>,
    blocks: BTreeMap<usize, Block>,
    /// Since when the model writes its calibration text, and how long that took.
    text: (Option<Instant>, f64),
    layers: usize,
    writing: Option<Instant>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Default)]
struct Block {
    /// Seconds in the order of [`Stage`].
    stages: [f64; 5],
    report: Report,
    flips: [usize; 2],
}

struct Tensor {
    name: String,
    seconds: f64,
    flips: [usize; 2],
    moved: u64,
}

impl<'a> Profile<'a> {
    pub fn new(next: &'a dyn Observer) -> Self {
        let state = State {
            since: Instant::now(),
            stage: None,
            blocks: BTreeMap::new(),
            text: (None, 0.0),
            layers: 0,
            writing: None,
            tensors: Vec::new(),
        };
        Self { next, state: Mutex::new(state) }
    }

    /// The tables: a row a tensor, and a row a block with a total.
    pub fn tables(&self) -> String {
        let Ok(mut state) = self.state.lock() else { return String::new() };
        state.end_stage();
        let writing = state.writing.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let text = match state.text {
            (None, _) => String::new(),
            (_, seconds) => format!("writing the calibration text: {seconds:.2} s\n"),
        };
        format!(
            "{}\n\n{}\n{text}writing the output: {writing:.2} s\n{NOTE}",
            tensors(&state.tensors),
            blocks(&state.blocks, state.layers)
        )
    }
}

/// What the columns are.
const NOTE: &str = "target: two-stream targets in f64, on the host. spectrum: eigenvalues in f64, on NVIDIA cards by their library, elsewhere on the host. Tensors of a block \
                    go side by side, so a tensor's seconds are those from the block's start to its end; on NVIDIA cards \
                    so do up to four batches, whose steps' seconds add up.";

impl State {
    fn end_stage(&mut self) {
        if let Some((layer, stage)) = self.stage.take() {
            self.blocks.entry(layer).or_default().stages[stage as usize] +=
                self.since.elapsed().as_secs_f64();
        }
        self.since = Instant::now();
    }
}

impl Observer for Profile<'_> {
    fn event(&self, event: Event<'_>) {
        if let Ok(mut state) = self.state.lock() {
            match event {
                Event::BeginText { .. } => state.text.0 = Some(Instant::now()),
                Event::Begin { layers } => {
                    state.layers = layers;
                    state.text.1 = state.text.0.map_or(0.0, |since| since.elapsed().as_secs_f64());
                }
                Event::Stage { layer, stage } => {
                    state.end_stage();
                    state.stage = Some((layer, stage));
                }
                Event::Encoded { layer, report } => {
                    state.end_stage();
                    state.blocks.entry(layer).or_default().report.add(report);
                }
                Event::Tensor { name, record: Record::Packed { quality, .. }, took: Some(took), moved } => {
                    let flips = [quality.row_flips, quality.column_flips];
                    if let Some((layer, _)) = state.stage {
                        let block = state.blocks.entry(layer).or_default();
                        block.flips.iter_mut().zip(flips).for_each(|(sum, flips)| *sum += flips);
                    }
                    let name = name.to_owned();
                    state.tensors.push(Tensor { name, seconds: took.as_secs_f64(), flips, moved });
                }
                Event::Tuned { .. } => state.end_stage(),
                Event::Writing => {
                    state.end_stage();
                    state.writing = Some(Instant::now());
                }
                _ => {}
            }
        }
        self.next.event(event);
    }
}

fn tensors(tensors: &[Tensor]) -> Table {
    let mut table = Table::new(&["tensor", "seconds", "row flips", "column flips", "MB moved"]);
    for tensor in tensors {
        table.row(vec![
            tensor.name.clone(),
            format!("{:.2}", tensor.seconds),
            tensor.flips[0].to_string(),
            tensor.flips[1].to_string(),
            format!("{:.1}", tensor.moved as f64 / 1e6),
        ]);
    }
    table
}

fn blocks(blocks: &BTreeMap<usize, Block>, layers: usize) -> Table {
    let steps = Step::ALL.map(Step::name);
    let mut head = vec!["block", "calibrate", "target"];
    head.extend(steps);
    head.extend(["encode", "tune", "run packed", "flips kept", "MB moved", "launches"]);
    let mut table = Table::new(&head);
    let mut total = Block::default();
    for (layer, block) in blocks {
        let name = if *layer < layers { (layer + 1).to_string() } else { "model".to_owned() };
        table.row(row(&name, block));
        total.report.add(&block.report);
        total.stages.iter_mut().zip(block.stages).for_each(|(sum, s)| *sum += s);
        total.flips.iter_mut().zip(block.flips).for_each(|(sum, flips)| *sum += flips);
    }
    table.row(row("all", &total));
    table
}

fn row(name: &str, block: &Block) -> Vec<String> {
    let seconds = |s: f64| format!("{s:.3}");
    let stage = |stage: Stage| seconds(block.stages[stage as usize]);
    let mut row = vec![name.to_owned(), stage(Stage::Calibrate), stage(Stage::Target)];
    row.extend(block.report.seconds.map(seconds));
    let moved = block.report.traffic.bytes_up + block.report.traffic.bytes_down;
    row.extend([
        stage(Stage::Encode),
        stage(Stage::Tune),
        stage(Stage::Advance),
        (block.flips[0] + block.flips[1]).to_string(),
        format!("{:.0}", moved as f64 / 1e6),
        block.report.traffic.launches.to_string(),
    ]);
    row
}
