use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use lapidary::compress::journal::Record;
use lapidary::compress::observer::{Event, Observer, Stage};
use lapidary::compress::pipeline::KEPT_BY_PLAN;
use lapidary::compress::tuning::Tuned;

/// A bar with rate and time left; nothing at all when stderr is not a terminal.
pub fn bar(length: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let template = format!("{{msg}} [{{bar:30}}] {{pos}}/{{len}} {unit}{{speed}}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // Before the first one is done nothing is known of either.
    bar.set_style(style.with_key("speed", |state: &ProgressState, out: &mut dyn Write| {
        if state.pos() > 0 {
            let _ = write!(out, " · {:.1}/s · {} left", state.per_sec(), HumanDuration(state.eta()));
        }
    }));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// A bar that counts bytes of a file.
#[cfg(feature = "hub")]
pub fn bytes_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes} · {bytes_per_sec} · {eta} left";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Draws a pack run: one bar over all tensors, a line for each finished tensor and each warning; where nobody watches, a line
/// for each block.
pub struct PackProgress {
    state: Mutex<State>,
    began: Instant,
    /// Whether a line is printed for each tensor.
    lines: bool,
}

struct State {
    bar: ProgressBar,
    layers: usize,
    /// What a line was printed for last: a block, or all of the model.
    said: Option<usize>,
}

impl PackProgress {
    pub fn new(lines: bool) -> Self {
        let bar = ProgressBar::hidden();
        Self { state: Mutex::new(State { bar, layers: 0, said: None }), began: Instant::now(), lines }
    }

    fn say(state: &State, line: &str) {
        state.bar.suspend(|| eprintln!("{line}"));
    }
}

impl Observer for PackProgress {
    fn event(&self, event: Event<'_>) {
        let Ok(mut state) = self.state.lock() else { return };
        match event {
            Event::BeginText { tokens } => {
                state.bar = bar(tokens as u64, "tokens");
                state.bar.set_message("writing calibration text");
                if !self.lines {
                    eprintln!("writing {tokens} tokens of calibration text");
                }
            }
            Event::Wrote { tokens } => state.bar.inc(tokens as u64),
            Event::Begin { layers } => {
                state.bar.finish_and_clear();
                state.bar = bar(0, "tensors");
                state.layers = layers;
                state.bar.set_length(7 * layers as u64);
            }
            Event::Stage { layer, stage } => {
                let doing = match stage {
                    Stage::Calibrate => "calibrating",
                    Stage::Target => "aiming",
                    Stage::Encode => "encoding",
                    Stage::Tune => "tuning",
                    Stage::Advance => "running packed",
                };
                let place = match layer < state.layers {
                    true => format!("block {}/{}", layer + 1, state.layers),
                    false => "model".to_owned(),
                };
                if !self.lines && state.said != Some(layer) {
                    eprintln!("{place} after {:.0} s", self.began.elapsed().as_secs_f64());
                    state.said = Some(layer);
                }
                state.bar.set_message(format!("{place} {doing}"));
            }
            Event::Tensor { name, record, took, .. } => {
                state.bar.inc(1);
                if took.is_none() {
                    // What the journal already had does not count towards the rate.
                    state.bar.reset_eta();
                }
                if self.lines || worth_a_line(record) {
                    Self::say(&state, &tensor_line(name, record, took));
                }
            }
            Event::Encoded { .. } => {}
            Event::Tuned { tuned } if self.lines || tuned.dropped.is_some() => {
                Self::say(&state, &tuned_line(tuned));
            }
            Event::Tuned { .. } => {}
            Event::Warning(text) => Self::say(&state, &format!("warning: {text}")),
            Event::Writing => state.bar.finish_and_clear(),
        }
    }
}

/// What is said even where nobody watches: a tensor that stays dense unasked, or that the device could not do.
fn worth_a_line(record: &Record) -> bool {
    match record {
        Record::Dense { reason } => reason != KEPT_BY_PLAN,
        Record::Packed { quality, .. } => quality.retried.is_some(),
    }
}

fn tuned_line(tuned: &Tuned) -> String {
    let what = tuned.layer.map_or_else(|| "model".to_owned(), |layer| format!("block {}", layer + 1));
    let dropped = tuned.dropped.as_ref().map_or_else(String::new, |why| format!(", not kept: {why}"));
    let losses = tuned
        .heldout
        .map_or_else(String::new, |[before, after]| format!(" held-out loss {before:.4} -> {after:.4}"));
    format!("{what}:{losses} by gradients{}{dropped}", turned_back(tuned))
}

/// How often training went astray.
pub fn turned_back(tuned: &Tuned) -> String {
    match tuned.turned_back {
        0 => String::new(),
        count => format!(", {count} times back to the best state and on at half the rates"),
    }
}

fn tensor_line(name: &str, record: &Record, took: Option<Duration>) -> String {
    let time =
        took.map_or_else(|| "from the journal".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()));
    match record {
        Record::Dense { reason } => format!("{name}: stays dense: {reason}"),
        Record::Packed { quality, .. } => {
            let rel = quality.heldout_rel.map_or_else(
                || format!("weight error {:.4}", quality.weight_rel),
                |rel| format!("held-out error {rel:.4}"),
            );
            let again = (quality.retried.as_ref())
                .map_or_else(String::new, |why| format!(", encoded again on the host: {why}"));
            format!(
                "{name}: {} x rank {}, {:.3} bits, {rel}, {time}{again}",
                quality.paths, quality.rank, quality.delivered_bits
            )
        }
    }
}
