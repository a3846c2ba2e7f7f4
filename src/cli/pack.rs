use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use miette::{IntoDiagnostic, Result, WrapErr};
use sha2::{Digest, Sha256};

use lapidary::compress::allocate::{AllocateParams, Allocation, allocate};
use lapidary::compress::calibration::CalibrationParams;
use lapidary::compress::fit::{check_fits, check_outputs_count};
use lapidary::compress::journal::{Journal, JournalError};
use lapidary::compress::observer::Observer;
use lapidary::compress::packing::Packing;
use lapidary::compress::pipeline::KEPT_BY_PLAN;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::{Recipe, RecipeName};
use lapidary::compress::tune::Tuner;
use lapidary::compress::tuning::Tuned;
use lapidary::compress::{Encoder, PackError, PackParams, check, pack};
use lapidary::device::{Device, write_durably};
use lapidary::model::Checkpoint;
use lapidary::model::text::hex;

use super::device::DeviceArgs;
use super::profile::Profile;
use super::progress::{PackProgress, turned_back};
use super::sources::SourceArgs;
use super::{check_writable, local, print};

/// Pack a model: each linear layer becomes ±1 factors with a few scales
#[derive(clap::Args)]
#[command(override_usage = "lapidary pack <MODEL> --output <DIR> [OPTIONS]")]
pub struct Args {
    /// Hugging Face folder or GGUF file
    model: PathBuf,
    /// Folder to write; it must not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Bits a weight for every linear layer that the plan does not name
    #[arg(long, value_name = "BITS", required_unless_present = "plan", allow_negative_numbers = true)]
    bits: Option<f64>,
    #[command(flatten)]
    sources: SourceArgs,
    /// How tensors are encoded
    #[arg(long, value_enum, default_value_t = RecipeArg::Nvg)]
    recipe: RecipeArg,
    /// Set a knob of the recipe, by its name in packing.json (`blend=0.3`, `params.gauge_steps=20`)
    #[arg(long, value_name = "KNOB=VALUE")]
    set: Vec<String>,
    /// Budgets by layer and tensor, a TOML file (docs/format.md)
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Spend the same bits where they help most: what each tensor does at a few budgets is measured first, on the
    /// calibration text, and the plan is written to OUTPUT.plan.toml
    #[arg(long, value_enum)]
    allocate: Option<Allocate>,
    /// Tokens of a calibration window
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Calibration tokens to fit on [default: the recipe's: 14848 for nvg, 49152 for nvg2, 196608 for fast and best; or what the text holds]
    #[arg(long, value_name = "N")]
    fit_tokens: Option<usize>,
    /// Calibration tokens to judge by, the last windows [default: the recipe's: 3072 for nvg, 16384 for nvg2, 49152 for fast and best; or the same share of the text]
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
    /// nvg2 from four times the text, half of the model's own part of it continuing the given one: the best without gradients
    Fast,
    /// fast, then gradients: scales and signs of each block, then of the whole model, on still more text (CUDA; hours on
    /// a host)
    Best,
    /// Data-free baseline
    DualSvid,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Allocate {
    /// How far a block's output moves on held-out text when one of its tensors is packed
    Measured,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Precision {
    F64,
    F32,
}

fn encoder(args: &Args, checkpoint: &Checkpoint, recipe: &Recipe, plan: &Plan) -> Result<Encoder> {
    let device = args.device.open_for(|device| -> Result<(), PackError> {
        if recipe.tunes() {
            Tuner::takes(device)?;
        }
        if !args.resume {
            check_outputs_count(device, recipe, checkpoint.config(), args.window as usize)?;
        }
        check_room(device, checkpoint, recipe, plan)
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

/// Whether a device has room for every tensor of a plan. The host has the reference, which asks for none beforehand.
fn check_room(
    device: &Device,
    checkpoint: &Checkpoint,
    recipe: &Recipe,
    plan: &Plan,
) -> Result<(), PackError> {
    let config = checkpoint.config();
    let assignments = plan.resolve(config.layers)?;
    match device {
        Device::Host => Ok(()),
        device => Ok(check_fits(device, recipe, config, &assignments)?),
    }
}

fn recipe(args: &Args) -> Result<Recipe> {
    let recipe = Recipe::of(match args.recipe {
        RecipeArg::Nvg => RecipeName::Nvg,
        RecipeArg::Nvg2 => RecipeName::Nvg2,
        RecipeArg::Fast => RecipeName::Fast,
        RecipeArg::Best => RecipeName::Best,
        RecipeArg::DualSvid => RecipeName::DualSvid,
    });
    with_knobs(recipe, &args.set)
}

/// A recipe with knobs as `--set` gives them.
pub fn with_knobs(mut recipe: Recipe, sets: &[String]) -> Result<Recipe> {
    for set in sets {
        let Some((key, value)) = set.split_once('=') else {
            return Err(miette::miette!("--set {set}: give KNOB=VALUE, as in --set blend=0.3"));
        };
        recipe = recipe.set(key, value).map_err(|error| miette::miette!("--set {error}"))?;
    }
    Ok(recipe)
}

pub fn run(args: Args) -> Result<ExitCode> {
    let began = Instant::now();
    let checkpoint = Checkpoint::open(local(&args.model)?).into_diagnostic()?;
    let plan = match (&args.plan, args.bits) {
        (Some(file), bits) => read_plan(file, bits, &checkpoint)?,
        (None, bits) => Plan::uniform(bits.unwrap_or(1.0)),
    };
    plan.resolve(checkpoint.config().layers).into_diagnostic()?;
    let recipe = recipe(&args)?;
    let texts = args.sources.read(&recipe)?;
    let given =
        [("--fit-tokens", args.fit_tokens.is_some()), ("--heldout-tokens", args.heldout_tokens.is_some())];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given && texts.is_empty()) {
        return Err(miette::miette!(
            "{option} is of calibration text, and this recipe takes none: leave it out"
        ));
    }
    let encoder = encoder(&args, &checkpoint, &recipe, &plan)?;
    let progress = PackProgress::new(std::io::stderr().is_terminal());
    let mut params = PackParams {
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
    if let Some(Allocate::Measured) = args.allocate {
        params.plan = allocated(&args, &checkpoint, &params, &progress)?;
    }
    let profile = args.profile.then(|| Profile::new(&progress));
    let observer: &dyn Observer = profile.as_ref().map_or(&progress, |profile| profile);
    let packing = pack(&checkpoint, params, observer).into_diagnostic()?;
    if let Some(profile) = &profile {
        print(&profile.tables())?;
    }
    print(&summary(&packing, &args.output, began.elapsed().as_secs_f64()))?;
    Ok(ExitCode::SUCCESS)
}

/// How a plan that was measured begins; behind it stands the SHA-256 of the one that was asked for.
const MEASURED: &str = "# by --allocate measured, for the plan ";

/// The plan that the measured responses ask for. A run that is taken up again goes on with the one that it wrote.
fn allocated(
    args: &Args,
    checkpoint: &Checkpoint,
    params: &PackParams,
    progress: &PackProgress,
) -> Result<Plan> {
    let output = check(checkpoint, params).into_diagnostic()?;
    let mut file = output.clone().into_os_string();
    file.push(".plan.toml");
    let file = PathBuf::from(file);
    let journal = Journal::folder_of(&output);
    // What was asked for is bound to the plan that came of it.
    let asked = toml::to_string(&params.plan).into_diagnostic()?;
    let asked = format!("{MEASURED}{}\n", hex(&Sha256::digest(asked)));
    match (args.resume, journal.is_dir()) {
        (true, true) if file.exists() => {
            let plan = std::fs::read_to_string(&file)
                .into_diagnostic()
                .wrap_err_with(|| file.display().to_string())?;
            if plan.starts_with(MEASURED) && !plan.starts_with(&asked) {
                let (file, journal) = (file.display(), journal.display());
                return Err(miette::miette!(
                    "{file} was measured for another --bits or --plan: repeat the command that began it, or delete it and \
                     {journal} to start again"
                ));
            }
            return read_plan(&file, None, checkpoint);
        }
        (true, false) => {
            let nothing = JournalError::Nothing { folder: journal };
            return Err(nothing)
                .into_diagnostic()
                .wrap_err("--allocate keeps nothing of what it measures until it is done");
        }
        (false, true) => return Err(JournalError::Interrupted { folder: journal }).into_diagnostic(),
        _ => {}
    }
    if file.exists() {
        let file = file.display();
        return Err(miette::miette!(
            "{file} exists already: pack with --plan {file} in the place of --allocate, or move it away"
        ));
    }
    check_writable(&file)?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    }
    let (encoder, texts, plan) = (params.encoder.clone(), params.texts.clone(), params.plan.clone());
    let measured = AllocateParams { encoder, texts, window: args.window as usize, plan };
    let Allocation { plan, responses, expected: [before, after] } =
        allocate(checkpoint, measured, progress).into_diagnostic()?;
    // A tensor may have got more than there is room for.
    check_room(params.encoder.device(), checkpoint, &params.recipe, &plan).into_diagnostic()?;
    let text = asked + &toml::to_string(&plan).into_diagnostic()?;
    let written = write_durably(&file, |out| out.write_all(text.as_bytes()));
    written.into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    let bits = responses.iter().map(|(_, bits)| *bits);
    let (least, most) = bits.fold((f64::INFINITY, 0.0f64), |(low, high), b| (low.min(b), high.max(b)));
    print(&format!(
        "bits   {least:.2} to {most:.2} a weight for {} layers: blocks should lose {:.1} % of what they would ({})",
        responses.len(),
        100.0 * after / before,
        file.display()
    ))?;
    Ok(plan)
}

fn read_plan(file: &Path, bits: Option<f64>, checkpoint: &Checkpoint) -> Result<Plan> {
    let name = || file.display().to_string();
    let text = std::fs::read_to_string(file).into_diagnostic().wrap_err_with(name)?;
    let plan = Plan::from_toml(&text, bits).and_then(|plan| {
        plan.resolve(checkpoint.config().layers)?;
        Ok(plan)
    });
    plan.into_diagnostic().wrap_err_with(name)
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
        let of = if packing.recipe.two_streams() { "two-stream target's output" } else { "output" };
        lines.push(format!("error  {heldout:.4} of the {of} on held-out text, {fit:.4} on the text fitted to (mean over layers)"));
    }
    let blocks: Vec<&Tuned> = packing.tuned.iter().filter(|tuned| tuned.layer.is_some()).collect();
    let mitigated: Vec<&Tuned> = packing.mitigated.iter().collect();
    for (what, tuned, errors) in [
        ("before", mitigated, "weights, before they were packed"),
        ("tuned ", blocks, "mean; errors above are from before"),
    ] {
        if tuned.is_empty() {
            continue;
        }
        let losses: Vec<_> = tuned.iter().filter_map(|tuned| tuned.heldout).collect();
        let mean = |k: usize| losses.iter().map(|loss| loss[k]).sum::<f64>() / losses.len().max(1) as f64;
        let kept = tuned.iter().filter(|tuned| tuned.dropped.is_none()).count();
        let (count, before, after) = (tuned.len(), mean(0), mean(1));
        lines.push(format!(
            "{what} {kept} of {count} blocks: held-out loss {before:.4} -> {after:.4} ({errors})"
        ));
    }
    if let Some(tuned) = packing.tuned.iter().find(|tuned| tuned.layer.is_none()) {
        let kept = tuned.dropped.as_ref().map_or_else(String::new, |why| format!(", not kept: {why}"));
        let losses = tuned.heldout.map_or_else(String::new, |[before, after]| {
            format!(": held-out divergence {before:.4} -> {after:.4} nats")
        });
        let back = turned_back(tuned);
        lines.push(format!("model  distilled{losses}{back}{kept}"));
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
    let (planned, dense): (Vec<_>, Vec<_>) = packing.dense().partition(|(_, reason)| *reason == KEPT_BY_PLAN);
    if !planned.is_empty() {
        lines.push(format!("stays dense, as the plan says: {} layers", planned.len()));
    }
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
