use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use serde_json::{Value, json};

use lapidary::atoms::baseline::{Baselines, Size, baselines};
use lapidary::atoms::measure::Measures;
use lapidary::atoms::picture::{self, Labels};
use lapidary::atoms::{self, Code, Fit, FitParams, Shape, file};
use lapidary::device::write_durably;
use lapidary::explain::{self, Recovered, Report};

use super::{check_free, print, print_json, wrote};

mod activations;
mod text;
mod words;

/// Every so many rows one is held out.
const HELD_OUT: usize = 5;

/// Explain activations by a dictionary of typed shapes: rays, lines, circles, spheres, tori
#[derive(clap::Args)]
pub struct Args {
    /// Activations (.npy or .safetensors, a row a token), or a model (a folder or a GGUF file)
    input: PathBuf,
    /// Of a model: the block whose output is explained, counted from 1, or `all` of them (with --words)
    #[arg(long, value_name = "N")]
    layer: Option<String>,
    /// Labelled words with templates: {"name": {"words": [...], "templates": ["Today is {}"]}}
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    words: Option<PathBuf>,
    /// The sets of words to explain [default: all of the file]
    #[arg(long = "set", value_name = "NAME", requires = "words")]
    sets: Vec<String>,
    /// A text, whose tokens are explained
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of the text that are used, two windows of 128 at least
    #[arg(long, value_name = "N", default_value_t = 4096, requires = "text", value_parser = clap::value_parser!(u32).range(2 * text::WINDOW as i64..))]
    tokens: u32,
    /// What is taken off first: the mean of all rows, or of each template's
    #[arg(long, value_enum, default_value_t = CentreArg::All, requires = "words")]
    centre: CentreArg,
    /// A label for each row of activations, a line each, for the pictures of --output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["words", "text"], requires = "output")]
    labels: Option<PathBuf>,
    /// The tensor of a safetensors file [default: its only one]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["words", "text"])]
    tensor: Option<String>,
    /// Most atoms
    #[arg(long, value_name = "K", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=64))]
    atoms: u32,
    /// Shapes that may be born [default: all of ray, line, arc, circle, sphere, torus, patch]
    #[arg(long, value_name = "SHAPE", value_delimiter = ',')]
    shapes: Vec<String>,
    /// Most atoms that may be on in one row
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=8))]
    active: u32,
    /// Of the random starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Time a fit may take; the best so far is kept
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Write activations, dictionary and codes (safetensors), report.html and a picture of each atom into this folder; of
    /// words into a folder a set, with `--layer all` a folder a block, as soon as it is explained
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum CentreArg {
    All,
    Template,
}

impl From<CentreArg> for explain::Centre {
    fn from(centre: CentreArg) -> Self {
        match centre {
            CentreArg::All => Self::All,
            CentreArg::Template => Self::Template,
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    check_free(args.output.as_deref())?;
    let params = params(&args)?;
    match (&args.words, &args.text) {
        (Some(file), _) => words::run(&args, file, &params),
        (_, Some(file)) => text::run(&args, file, &params),
        _ if is_model(&args.input) => {
            Err(miette!("{} is a model: name --words or --text, and a --layer", args.input.display()))
        }
        _ if args.layer.is_some() => Err(miette!(
            "--layer is of a model, and {} holds activations: leave it out",
            args.input.display()
        )),
        _ => activations::run(&args, &params),
    }
}

fn is_model(input: &Path) -> bool {
    input.is_dir() || input.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn params(args: &Args) -> Result<FitParams> {
    let shape = |name: &String| {
        Shape::of_name(name).ok_or_else(|| {
            let all: Vec<&str> = Shape::ALL.iter().map(|shape| shape.name()).collect();
            miette!("there is no shape `{name}`; there are: {}", all.join(", "))
        })
    };
    let shapes = args.shapes.iter().map(shape).collect::<Result<Vec<_>>>()?;
    let seconds = |s: f64| {
        Duration::try_from_secs_f64(s)
            .map_err(|_| miette!("--seconds {s} must be a number that is not below zero"))
    };
    Ok(FitParams {
        atoms: args.atoms as usize,
        shapes: if shapes.is_empty() { Shape::ALL.to_vec() } else { shapes },
        active: args.active as usize,
        seed: args.seed,
        time: args.seconds.map(seconds).transpose()?,
    })
}

/// One layer of a model, counted from 1 on the command line and from 0 here.
fn one_layer(args: &Args, layers: usize) -> Result<usize> {
    let Some(layer) = &args.layer else { return Err(miette!("name a block with --layer, 1 to {layers}")) };
    match layer.parse::<usize>() {
        Ok(layer) if (1..=layers).contains(&layer) => Ok(layer - 1),
        _ => Err(miette!("--layer {layer}: the model has the blocks 1 to {layers}")),
    }
}

/// Rows with names, and what was found in them.
struct Explained {
    title: String,
    width: usize,
    x: Vec<f64>,
    of_row: Vec<usize>,
    names: Vec<String>,
    fit: Fit,
    codes: Vec<Code>,
    /// On rows that were not fitted, where there are any.
    measures: Measures,
    held_out: bool,
    baselines: Option<Baselines>,
    notes: Vec<Vec<String>>,
    recovered: Option<Recovered>,
}

/// Fits the rows that are not held out and measures on those that are; on all of them where none are.
fn explained(
    title: String,
    (x, width): (Vec<f64>, usize),
    (of_row, names): (Vec<usize>, Vec<String>),
    params: &FitParams,
    is_held_out: impl Fn(usize) -> bool,
) -> Result<Explained> {
    let rows = || x.chunks_exact(width).enumerate();
    let pick = |held: bool| -> Vec<f64> {
        rows().filter(|(i, _)| is_held_out(*i) == held).flat_map(|(_, row)| row.iter().copied()).collect()
    };
    // Named as the rows of the file, not of a part of it.
    if let Some(at) = x.iter().position(|v| !v.is_finite()) {
        let error = atoms::AtomsError::NonFinite { row: at / width, column: at % width, value: x[at] };
        return Err(error).into_diagnostic();
    }
    let (fit_rows, held) = (pick(false), pick(true));
    let fit = atoms::fit(&fit_rows, width, params).into_diagnostic()?;
    let test = if held.is_empty() { &fit_rows } else { &held };
    let measures = fit.dictionary.measure(test, width).into_diagnostic()?;
    if measures.explained.is_nan() {
        let rows = test.len() / width;
        let which = if held.is_empty() { "rows fitted" } else { "held-out rows" };
        return Err(atoms::AtomsError::NoVariance { rows })
            .into_diagnostic()
            .wrap_err_with(|| which.to_owned());
    }
    let size =
        Size { rows: fit.dictionary.decoder_rows(), coefficients: measures.coefficients.ceil() as usize };
    let linear = (size.coefficients > 0).then(|| baselines(&fit_rows, test, width, size));
    let linear = linear.transpose().into_diagnostic()?;
    let codes = fit.dictionary.encode(&x, width).into_diagnostic()?;
    let notes = vec![Vec::new(); fit.dictionary.atoms.len()];
    let held_out = !held.is_empty();
    Ok(Explained {
        title,
        width,
        x,
        of_row,
        names,
        fit,
        codes,
        measures,
        held_out,
        baselines: linear,
        notes,
        recovered: None,
    })
}

impl Explained {
    fn lines(&self) -> Vec<(String, String)> {
        let (m, which) = (&self.measures, if self.held_out { "held-out rows" } else { "the rows fitted" });
        let mut lines = vec![
            (format!("explained variance, {which}"), format!("{:.4}", m.explained)),
            ("active atoms a row (L0)".into(), format!("{:.2}", m.l0)),
            ("coefficients a row".into(), format!("{:.2}", m.coefficients)),
            ("atoms alive".into(), format!("{:.0} %", 100.0 * m.alive)),
        ];
        if let Some(linear) = self.baselines {
            lines.push(("principal components, equal coefficients".into(), format!("{:.4}", linear.pca)));
            lines
                .push(("TopK directions, equal rows and coefficients".into(), format!("{:.4}", linear.topk)));
            if linear.pca.max(linear.topk) > m.explained {
                lines.push(("verdict".into(), "plain directions explain more than these shapes do".into()));
            }
        }
        let space = &self.fit.dictionary.space;
        lines.push((
            "fitted in".into(),
            format!("{} principal components, {:.1} % of the variance", space.rank, 100.0 * space.share),
        ));
        lines
    }

    fn json(&self) -> Value {
        let atoms: Vec<Value> = (self.fit.dictionary.atoms.iter().zip(&self.notes))
            .map(|(atom, notes)| {
                json!({
                    "shape": atom.shape, "activity": atom.activity, "spread": atom.spread, "notes": notes,
                })
            })
            .collect();
        let m = &self.measures;
        json!({
            "title": self.title,
            "rows": self.codes.len(),
            "width": self.width,
            "held_out": self.held_out,
            "explained": m.explained,
            "l0": m.l0,
            "coefficients": m.coefficients,
            "alive": m.alive,
            "pca": self.baselines.map(|b| b.pca),
            "topk": self.baselines.map(|b| b.topk),
            "atoms": atoms,
            "recovered": self.recovered,
            "loss_recovered": self.recovered.map(|r| r.share()),
            "certificate": self.fit.certificate,
        })
    }

    fn show(&self, args: &Args) -> Result<()> {
        if let Some(folder) = &args.output {
            self.write(folder)?;
            wrote(&folder.join("report.html"));
        }
        if args.json { print_json(&self.json()) } else { self.tell() }
    }

    fn tell(&self) -> Result<()> {
        let certificate = &self.fit.certificate;
        let mut lines = vec![
            self.title.clone(),
            format!("outcome: {}; births ended since {}", certificate.outcome, certificate.ending),
        ];
        lines.extend(self.lines().into_iter().map(|(name, value)| format!("{name}: {value}")));
        if let Some(recovered) = self.recovered {
            lines.push(format!("loss recovered: {:.3}", recovered.share()));
        }
        for (k, (atom, notes)) in self.fit.dictionary.atoms.iter().zip(&self.notes).enumerate() {
            let amplitude =
                if atom.is_free() { format!(", amplitude 1 ± {:.2}", atom.spread) } else { String::new() };
            lines.push(format!("atom {k}: {}, on in {:.0} %{amplitude}", atom.shape, 100.0 * atom.activity));
            lines.extend(notes.iter().map(|note| format!("    {note}")));
        }
        print(&lines.join("\n"))
    }

    fn labels(&self) -> Labels<'_> {
        Labels { of_row: &self.of_row, names: &self.names }
    }

    fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
        let dictionary = &self.fit.dictionary;
        file::write_dictionary(&folder.join("dictionary.safetensors"), dictionary, &self.fit.certificate)
            .into_diagnostic()?;
        file::write_activations(&folder.join("activations.safetensors"), &self.x, self.width)
            .into_diagnostic()?;
        file::write_codes(&folder.join("codes.safetensors"), &self.codes).into_diagnostic()?;
        let page = explain::page(&Report {
            title: &self.title,
            dictionary,
            certificate: &self.fit.certificate,
            x: &self.x,
            codes: &self.codes,
            labels: self.labels(),
            measures: &self.lines(),
            notes: &self.notes,
            recovered: self.recovered,
        });
        let mut files = vec![("report.html".to_owned(), page)];
        for k in 0..dictionary.atoms.len() {
            let svg = picture::atom(dictionary, &self.codes, &self.x, k, self.labels());
            files.push((format!("atom-{k}.svg"), svg));
        }
        for (name, text) in files {
            let file = folder.join(name);
            let written = write_durably(&file, |out| out.write_all(text.as_bytes()));
            written.into_diagnostic().wrap_err_with(|| file.display().to_string())?;
        }
        Ok(())
    }
}
