use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use miette::{IntoDiagnostic, Result, WrapErr, miette};

use lapidary::arrow::bench::Figure;
use lapidary::compress::bench::{BlockRun, block_7b};
use lapidary::compress::calibration::{CalibrationParams, Source};
use lapidary::compress::compare::{CompareParams, Comparison, compare};
use lapidary::compress::observer::Silent;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::Recipe;
use lapidary::compress::sweep::sweep;
use lapidary::compress::{Encoder, PackParams, pack};
use lapidary::device::Device;
use lapidary::eval::{Original, evaluate_on};
use lapidary::model::text::{Text, Windows};
use lapidary::model::{Checkpoint, Decoder};

use super::sweep as sweep_of;
use crate::cli::device::DeviceArgs;
use crate::cli::hub::local;
use crate::cli::pack::with_knobs;
use crate::cli::print;
use crate::cli::profile::Profile;

/// Tokens of a calibration window, as in the published measurement.
const WINDOW: usize = 512;

/// The encoder: packing a model, its quality against the reference, and a block of a 7B model's shapes
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("measured").required(true).multiple(true).args(["model", "block7b", "shapes"])))]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Model to pack at 1.0 bit: a Hugging Face folder or a GGUF file
    #[arg(long, value_name = "MODEL", requires = "text")]
    model: Option<PathBuf>,
    /// Calibration text
    #[arg(long, value_name = "FILE", requires = "model")]
    text: Option<PathBuf>,
    /// Text on which the divergence of the device's and the reference's model from the original is measured
    #[arg(long, value_name = "FILE", requires = "model")]
    test: Option<PathBuf>,
    /// Windows of 512 tokens of that text
    #[arg(long, value_name = "N", default_value_t = 40, requires = "test")]
    windows: usize,
    /// Compare with the reference on the first N blocks, from the same Grams (0: not at all; without a number, all of
    /// them when a test text or --reference is given)
    #[arg(long, value_name = "N", requires = "model")]
    blocks: Option<usize>,
    /// Bits a weight of the comparison
    #[arg(long, value_name = "BITS", default_value_t = 1.0)]
    bits: f64,
    /// Set a knob of the comparison's recipe (`damping=0.031`): how far two models apart are that are fitted equally well
    #[arg(long, value_name = "KNOB=VALUE", requires = "model")]
    set: Vec<String>,
    /// Keep the reference's results in FOLDER.partial, and take from there what it holds already
    #[arg(long, value_name = "FOLDER", requires = "model")]
    reference: Option<PathBuf>,
    /// Compute the reference's results alone
    #[arg(long, requires = "reference", conflicts_with = "test")]
    reference_only: bool,
    /// Do not pack the model, only compare
    #[arg(long)]
    no_pack: bool,
    /// Encode one block of a 7B model's shapes, made up on the device
    #[arg(long)]
    block7b: bool,
    /// Divide the sides of that block
    #[arg(long, value_name = "N", default_value_t = 1, requires = "block7b", value_parser = clap::value_parser!(u32).range(1..=64))]
    divisor: u32,
    /// Encode single tensors whose sides and ranks vary; a table, and with --out a plot, shapes.svg
    #[arg(long)]
    shapes: bool,
    #[command(flatten)]
    output: super::Output,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let device = args.device.open()?;
    let mut figures = Vec::new();
    if let (Some(model), Some(text)) = (&args.model, &args.text) {
        measure_model(&args, &device, model, text, &mut figures)?;
    }
    if args.block7b {
        let run = block_7b(&device, args.divisor as usize, 1.0, &|what| eprintln!("7B block: {what}"))
            .into_diagnostic()?;
        show_block(&run, args.divisor, &mut figures)?;
    }
    if args.shapes {
        let points = sweep(&device, &|what| eprintln!("encoding {what}")).into_diagnostic()?;
        print(&sweep_of::table(&points).to_string())?;
        if let Some(folder) = &args.output.out {
            super::write(folder, &[("shapes.svg", sweep_of::svg(&points))])?;
        }
    }
    args.output.show(&figures, &[("device", device.name())])?;
    Ok(ExitCode::SUCCESS)
}

/// Name of a model in figures: what stands before the first dash, in lower case.
fn stem(model: &Path) -> String {
    let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy().to_lowercase();
    name.split(['-', '.']).next().unwrap_or("model").to_owned()
}

fn kind(device: &Device) -> &'static str {
    match device {
        Device::Host => "host",
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => "cuda",
        #[cfg(feature = "wgpu")]
        Device::Wgpu(_) => "wgpu",
    }
}

fn figure(figures: &mut Vec<Figure>, name: String, value: f64, unit: &'static str, note: Option<String>) {
    figures.push(Figure::new(name, value, unit, note));
}

fn measure_model(
    args: &Args,
    device: &Device,
    model: &Path,
    text: &Path,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let model = &local(model)?;
    let (stem, kind) = (stem(model), kind(device));
    let folder = tempfile(&stem)?;
    let measured = (|| {
        let checkpoint = Checkpoint::open(model).into_diagnostic()?;
        if !args.no_pack {
            let output = folder.join("packed");
            let began = Instant::now();
            let profile = Profile::new(&Silent);
            pack(&checkpoint, pack_params(device, text, &output)?, &profile).into_diagnostic()?;
            let seconds = began.elapsed().as_secs_f64();
            print(&profile.tables())?;
            figure(figures, format!("encode.{stem}.{kind}_s"), seconds, "s", None);
            let whole = process(args, model, text, &folder.join("process"))?;
            let name = if kind == "cuda" { "process_s".to_owned() } else { format!("{kind}_process_s") };
            figure(figures, format!("encode.{stem}.{name}"), whole, "s", None);
        }
        compare_model(args, device, &checkpoint, text, figures)
    })();
    std::fs::remove_dir_all(&folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    measured
}

/// The device against the reference from the same Grams, where that is asked for.
fn compare_model(
    args: &Args,
    device: &Device,
    checkpoint: &Checkpoint,
    text: &Path,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let all = if args.test.is_some() || args.reference.is_some() { checkpoint.config().layers } else { 0 };
    let blocks = args.blocks.unwrap_or(all);
    let recipe = with_knobs(Recipe::nvg(), &args.set)?;
    if blocks == 0 {
        return match args.test.is_some() || !args.set.is_empty() {
            true => {
                Err(miette!("--test and --set are of the comparison, and nothing is compared: give --blocks"))
            }
            false => Ok(()),
        };
    }
    if recipe.two_streams() || recipe.needs_gradients() {
        return Err(miette!("--set: the comparison knows the encoder alone: damping, paths and params"));
    }
    let params = CompareParams {
        text: read(text)?,
        calibration: calibration(),
        recipe,
        bits: args.bits,
        blocks,
        kept: args.reference.clone(),
    };
    let say = |what: &str| eprintln!("comparing: {what}");
    let device_of = (!args.reference_only).then_some(device);
    let compared = compare(checkpoint, device_of, params, &say).into_diagnostic()?;
    if args.reference_only {
        figure(figures, "encode.reference_s".into(), compared.reference_s, "s", None);
        return Ok(());
    }
    show_comparison(&compared, kind(device), figures)?;
    match &args.test {
        Some(test) => divergence(device, checkpoint, &compared, (test, args.windows), figures),
        None => Ok(()),
    }
}

/// A new folder for what is packed and thrown away.
fn tempfile(stem: &str) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("lapidary-bench-{stem}-{}", std::process::id()));
    std::fs::create_dir(&folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    Ok(folder)
}

fn read(text: &Path) -> Result<Text> {
    Text::read(&[text.to_owned()]).into_diagnostic()
}

fn calibration() -> CalibrationParams {
    CalibrationParams { window: WINDOW, fit_tokens: None, heldout_tokens: None }
}

fn pack_params(device: &Device, text: &Path, output: &Path) -> Result<PackParams> {
    Ok(PackParams {
        output: output.to_owned(),
        plan: Plan::uniform(1.0),
        recipe: Recipe::nvg(),
        encoder: Encoder::Batch(device.clone()),
        texts: Source::text(read(text)?),
        calibration: calibration(),
        resume: false,
    })
}

/// Seconds of the same job as a process of its own.
fn process(args: &Args, model: &Path, text: &Path, output: &Path) -> Result<f64> {
    let program = std::env::current_exe().into_diagnostic()?;
    let mut command = Command::new(program);
    command
        .arg("pack")
        .arg(model)
        .args(["--bits", "1", "--precision", "f32", "--text"])
        .arg(text)
        .arg("-o")
        .arg(output);
    command.args(["--device", &args.device.name()]).stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let ran = command.output().into_diagnostic()?;
    let seconds = began.elapsed().as_secs_f64();
    if !ran.status.success() {
        return Err(miette!("lapidary pack failed: {}", String::from_utf8_lossy(&ran.stderr)));
    }
    Ok(seconds)
}

fn show_comparison(compared: &Comparison, kind: &str, figures: &mut Vec<Figure>) -> Result<()> {
    for tensor in &compared.tensors {
        let delta = 100.0 * (tensor.device / tensor.reference - 1.0);
        print(&format!(
            "{}: reference {:.5}, device {:.5}, {delta:+.3} %",
            tensor.name, tensor.reference, tensor.device
        ))?;
    }
    for missing in &compared.missing {
        print(&format!("not compared: {missing}"))?;
    }
    figure(figures, "encode.rel_mean_delta_percent".into(), compared.mean_delta_percent(), "%", None);
    if let Some((tensor, delta)) = compared.worst() {
        figure(figures, "encode.rel_worst_delta_percent".into(), delta, "%", Some(tensor.name.clone()));
    }
    figure(figures, format!("encode.compared_{kind}_s"), compared.device_s, "s", None);
    if compared.kept == 0 {
        let speedup = compared.reference_s / compared.device_s;
        figure(figures, "encode.reference_s".into(), compared.reference_s, "s", None);
        figure(figures, format!("encode.{kind}_f32_speedup"), speedup, "x", None);
    }
    Ok(())
}

/// Mean KL of the reference's and the device's model to the original, on some windows of a text.
fn divergence(
    device: &Device,
    checkpoint: &Checkpoint,
    compared: &Comparison,
    (test, windows): (&Path, usize),
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let (tokenizer, bos) = (checkpoint.tokenizer().into_diagnostic()?, checkpoint.config().start_token());
    let mut windows_of_text = Windows::cut(&read(test)?, &tokenizer, WINDOW, bos).into_diagnostic()?;
    windows_of_text.truncate(windows);
    let original = Decoder::load(checkpoint).into_diagnostic()?;
    let mut kl = [0.0; 2];
    let sides = [("reference", &compared.by_reference), ("device", &compared.by_device)];
    for (kl, (side, decoder)) in kl.iter_mut().zip(sides) {
        let original = Some(Original::Loaded(&original));
        let scores = evaluate_on(device, decoder, original, &windows_of_text, &|_| ()).into_diagnostic()?;
        *kl = scores.divergence.map_or(f64::NAN, |divergence| divergence.mean_kl);
        print(&format!("{side}: perplexity {:.2}, mean KL {kl:.4}", scores.perplexity))?;
        figure(figures, format!("encode.{side}_kl"), *kl, "nats", None);
    }
    figure(figures, "encode.kl_delta_percent".into(), 100.0 * (kl[1] / kl[0] - 1.0), "%", None);
    Ok(())
}

fn show_block(run: &BlockRun, divisor: u32, figures: &mut Vec<Figure>) -> Result<()> {
    for (name, rank, rel) in &run.tensors {
        print(&format!("{name}: rank {rank}, held-out error {rel:.4}"))?;
    }
    for missing in &run.missing {
        print(&format!("given back: {missing}"))?;
    }
    for (step, seconds) in lapidary::compress::batch::Step::ALL.iter().zip(run.report.seconds) {
        print(&format!("{}: {seconds:.2} s", step.name()))?;
    }
    let name =
        if divisor == 1 { "encode.block7b".to_owned() } else { format!("encode.block7b_over_{divisor}") };
    let note = (!run.missing.is_empty()).then(|| format!("{} tensors were given back", run.missing.len()));
    figure(figures, format!("{name}_s"), run.seconds, "s", note);
    let gigabytes = 4.0 * run.report.largest_arena as f64 / 1e9;
    figure(
        figures,
        format!("{name}_arena_gb"),
        gigabytes,
        "GB",
        Some(format!("{} batches", run.report.batches)),
    );
    Ok(())
}
