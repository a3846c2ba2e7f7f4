use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::compress::calibration::{CalibrationParams, Content, Source};
use lapidary::compress::fit::check_fits;
use lapidary::compress::observer::Observer;
use lapidary::compress::packing::Packing;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::{Recipe, RecipeName};
use lapidary::compress::self_written::WriteParams;
use lapidary::compress::{Encoder, PackParams, pack};
use lapidary::device::Device;
use lapidary::model::Checkpoint;
use lapidary::model::text::Text;

use super::device::DeviceArgs;
use super::profile::Profile;
use super::progress::PackProgress;
use super::print;

/// Pack a model: each linear layer becomes ±1 factors with a few scales
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder or GGUF file
    model: PathBuf,
    /// Folder to write; it must not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Bits a weight for every linear layer that the plan does not name
    #[arg(long, value_name = "BITS", required_unless_present = "plan", allow_negative_numbers = true)]
    bits: Option<f64>,
    /// Calibration text: a UTF-8 file, or `self` for text that the model writes; with `:SHARE` behind it (`self:0.5`)
    /// sources are mixed by their shares of the tokens, files without one are concatenated [default: self; with nvg2,
    /// one file is mixed half and half with self]
    #[arg(long = "text", value_name = "FILE|self[:SHARE]", num_args = 1..)]
    texts: Vec<String>,
    /// Seed of the text that the model writes
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Temperature at which it writes; 1 is its own distribution
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f32,
    /// How tensors are encoded
    #[arg(long, value_enum, default_value_t = RecipeArg::Nvg)]
    recipe: RecipeArg,
    /// Set a knob of the recipe, by its name in packing.json (`blend=0.3`, `params.gauge_steps=20`)
    #[arg(long, value_name = "KNOB=VALUE")]
    set: Vec<String>,
    /// Budgets by layer and tensor, a TOML file (docs/format.md)
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Tokens of a calibration window
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Calibration tokens to fit on [default: 14848, with nvg2 49152, or what the text holds]
    #[arg(long, value_name = "N")]
    fit_tokens: Option<usize>,
    /// Calibration tokens to judge by, the last windows [default: 3072, with nvg2 16384, or the same share of the text]
    #[arg(long, value_name = "N")]
    heldout_tokens: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Numbers that the encoder works in: f64 is its definition and for the host alone [default: f64 on the host, f32 on
    /// any other device]
    #[arg(long, value_enum, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// Say where the time went: stages, flips and bytes moved, for each tensor and each block
    #[arg(long)]
    profile: bool,
    /// Continue an interrupted run of the same command
    #[arg(long)]
    resume: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum RecipeArg {
    /// Training-free encoder in the metric of the calibration Gram
    Nvg,
    /// The same beside the original model: each layer is fitted to undo what the packed ones before it changed
    Nvg2,
    /// Data-free baseline
    DualSvid,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Precision {
    F64,
    F32,
}

fn encoder(args: &Args, checkpoint: &Checkpoint, recipe: &Recipe, plan: &Plan) -> Result<Encoder> {
    let config = checkpoint.config();
    let assignments = plan.resolve(config.layers).into_diagnostic()?;
    // The host has the reference, which asks for no room beforehand.
    let device = args.device.open_for(|device| match matches!(device, Device::Host) {
        true => Ok(()),
        false => check_fits(device, recipe, config, &assignments),
    })?;
    match (device, args.precision) {
        (Device::Host, None | Some(Precision::F64)) => Ok(Encoder::Reference),
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        (device, Some(Precision::F64)) => {
            let name = device.name();
            Err(miette::miette!(
                "{name} encodes in f32; leave --precision out, or take --device host for f64"
            ))
        }
        (device, _) => Ok(Encoder::Batch(device)),
    }
}

fn recipe(args: &Args) -> Result<Recipe> {
    let mut recipe = Recipe::of(match args.recipe {
        RecipeArg::Nvg => RecipeName::Nvg,
        RecipeArg::Nvg2 => RecipeName::Nvg2,
        RecipeArg::DualSvid => RecipeName::DualSvid,
    });
    for set in &args.set {
        let Some((key, value)) = set.split_once('=') else {
            return Err(miette::miette!("--set {set}: give KNOB=VALUE, as in --set blend=0.3"));
        };
        recipe = recipe.set(key, value).into_diagnostic().wrap_err("--set")?;
    }
    Ok(recipe)
}

/// What calibrates: the texts that were named, and what the recipe takes beside or instead of them.
fn sources(args: &Args, recipe: &Recipe) -> Result<Vec<Source>> {
    let write = WriteParams { temperature: args.temperature, seed: args.seed, ..WriteParams::default() };
    let named = args.texts.iter().map(|text| split_share(text)).collect::<Result<Vec<_>>>()?;
    if named.iter().filter(|(name, _)| *name == SELF).count() > 1 {
        return Err(miette::miette!("--text: the model writes one text, so give self once"));
    }
    let own = || Source::mixed(None, write);
    if named.is_empty() {
        return Ok(if recipe.needs_text() { own() } else { Vec::new() });
    }
    if named.iter().all(|(name, share)| *name != SELF && share.is_none()) {
        let files: Vec<PathBuf> = named.iter().map(|(name, _)| PathBuf::from(name)).collect();
        let text = Text::read(&files).into_diagnostic()?;
        return Ok(match recipe.two_streams() {
            true => Source::mixed(Some(text), write),
            false => Source::text(text),
        });
    }
    let source = |(name, share): &(&str, Option<f64>)| -> Result<Source> {
        let content = match *name {
            SELF => Content::SelfWritten(write),
            file => Content::Given(Text::read(&[PathBuf::from(file)]).into_diagnostic()?),
        };
        Ok(Source { content, share: share.unwrap_or(1.0) })
    };
    named.iter().map(source).collect()
}

/// The name of the text that the model writes; a file of that name is `./self`.
const SELF: &str = "self";

/// `NAME:SHARE`, or a name alone; a file that exists under the whole name is meant as it stands.
fn split_share(text: &str) -> Result<(&str, Option<f64>)> {
    let share = text.rsplit_once(':').and_then(|(name, share)| Some((name, share.parse::<f64>().ok()?)));
    match share {
        Some((name, share)) if !std::path::Path::new(text).exists() => match share.is_finite() && share > 0.0 {
            true => Ok((name, Some(share))),
            false => Err(miette::miette!("--text {text}: a share is a number above 0")),
        },
        _ => Ok((text, None)),
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let began = Instant::now();
    let checkpoint = Checkpoint::open(&args.model).into_diagnostic()?;
    let plan = match (&args.plan, args.bits) {
        (Some(file), bits) => {
            let text = std::fs::read_to_string(file)
                .into_diagnostic()
                .wrap_err_with(|| file.display().to_string())?;
            let plan = Plan::from_toml(&text, bits).and_then(|plan| {
                plan.resolve(checkpoint.config().layers)?;
                Ok(plan)
            });
            plan.into_diagnostic().wrap_err_with(|| file.display().to_string())?
        }
        (None, bits) => Plan::uniform(bits.unwrap_or(1.0)),
    };
    let recipe = recipe(&args)?;
    let texts = sources(&args, &recipe)?;
    let encoder = encoder(&args, &checkpoint, &recipe, &plan)?;
    let params = PackParams {
        output: args.output.clone(),
        plan,
        recipe,
        encoder,
        texts,
        calibration: CalibrationParams {
            window: args.window as usize,
            fit_tokens: args.fit_tokens,
            heldout_tokens: args.heldout_tokens,
        },
        resume: args.resume,
    };
    let progress = PackProgress::new(std::io::stderr().is_terminal());
    let profile = args.profile.then(|| Profile::new(&progress));
    let observer: &dyn Observer = profile.as_ref().map_or(&progress, |profile| profile);
    let packing = pack(&checkpoint, params, observer).into_diagnostic()?;
    if let Some(profile) = &profile {
        print(&profile.tables())?;
    }
    print(&summary(&packing, &args.output, began.elapsed().as_secs_f64()))?;
    Ok(ExitCode::SUCCESS)
}

fn summary(packing: &Packing, output: &std::path::Path, seconds: f64) -> String {
    let totals = &packing.totals;
    let mut lines = vec![format!(
        "packed {} of {} linear layers in {}",
        totals.packed_tensors,
        totals.packed_tensors + totals.dense_tensors,
        duration(seconds)
    )];
    lines.push(format!(
        "body   {:.3} bits a weight (asked for {:.3}), {} weights",
        totals.body_bits, totals.requested_bits, totals.packed_weights
    ));
    lines.push(format!("model  {:.3} bits a weight, everything counted", totals.model_bits));
    if let (Some(fit), Some(heldout)) = (totals.mean_fit_rel, totals.mean_heldout_rel) {
        lines.push(format!("error  {heldout:.4} of the output on held-out text, {fit:.4} on the text fitted to (mean over layers)"));
    }
    let clipped = packing.clipped();
    if clipped > 0 {
        lines.push(format!(
            "budget not met by {clipped} layers, whose smallest or largest rank decided (lapidary inspect)"
        ));
    }
    let retried = packing.retried().count();
    if retried > 0 {
        lines.push(format!(
            "retried on the host: {retried} layers that the device could not encode (lapidary inspect)"
        ));
    }
    let dense: Vec<_> = packing.dense().collect();
    if !dense.is_empty() {
        lines.push("stays dense:".into());
        lines.extend(dense.iter().map(|(name, reason)| format!("  {name}: {reason}")));
    }
    lines.push(format!(
        "written to {}; try: lapidary generate {} -p \"...\"",
        output.display(),
        quoted(output)
    ));
    lines.join("\n")
}

/// A path as a shell takes it.
fn quoted(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.1} s") } else { format!("{:.1} minutes", seconds / 60.0) }
}
