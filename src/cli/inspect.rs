use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use serde_json::{Value, json};

use lapidary::compress::journal::Record;
use lapidary::compress::packing::Packing;
use lapidary::model::{Checkpoint, Linear, LinearName};

use super::table::{Table, megabytes};
use super::{open, print, print_json};

/// Say what a model is: sizes, tensors, and for a packed one what each layer got
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder (packed or not) or GGUF file
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let (checkpoint, decoder) = open(&args.model)?;
    let packing = packing_of(checkpoint.path())?;
    let mut layers = Vec::new();
    for layer in 0..checkpoint.config().layers {
        layers.extend(LinearName::ALL.map(|name| (name.prefix(layer), decoder.linear(layer, name))));
    }
    if args.json {
        print_json(&as_json(&checkpoint, &layers, packing.as_ref()))?;
    } else {
        print(&as_text(&checkpoint, &layers, packing.as_ref())?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn packing_of(model: &Path) -> Result<Option<Packing>> {
    if model.join("packing.json").is_file() {
        Packing::read(model).map(Some).into_diagnostic()
    } else {
        Ok(None)
    }
}

/// Weights and stored bytes of everything.
fn size(checkpoint: &Checkpoint, layers: &[(String, &Linear)]) -> Result<(u64, u64)> {
    let (mut weights, mut bytes) = (0, 0);
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).into_diagnostic()?;
        bytes += tensor.bytes.len() as u64;
        if !name.ends_with(".blr") {
            weights += tensor.shape.iter().product::<usize>() as u64;
        }
    }
    for (_, linear) in layers {
        if let Linear::Packed { payload, in_features } = linear {
            weights += (payload.rows() * in_features) as u64;
        }
    }
    Ok((weights, bytes))
}

fn as_text(
    checkpoint: &Checkpoint,
    layers: &[(String, &Linear)],
    packing: Option<&Packing>,
) -> Result<String> {
    let config = checkpoint.config();
    let (weights, bytes) = size(checkpoint, layers)?;
    let mut text = format!(
        "{}: {}, {} blocks, width {}, {} heads ({} for keys and values) of {}, gated unit {}, vocabulary {}, {} head\n\
         {} weights in {}: {:.3} bits a weight\n",
        checkpoint.path().display(),
        config.family.name(),
        config.layers,
        config.hidden,
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.intermediate,
        config.vocab,
        if config.tied { "tied" } else { "untied" },
        weights,
        megabytes(bytes),
        8.0 * bytes as f64 / weights as f64,
    );
    if let Some(packing) = packing {
        let totals = &packing.totals;
        text += &format!(
            "packed by lapidary {} from {} with {}: body {:.3} bits a weight (asked for {:.3})\n",
            packing.lapidary,
            packing.source.name,
            packing.recipe.name,
            totals.body_bits,
            totals.requested_bits
        );
    }
    let mut table = Table::new(&["layer", "shape", "stored", "bits", "fit error", "held-out error"]);
    for (name, linear) in layers {
        let quality = packing.and_then(|packing| quality_of(packing, name));
        let error = |rel: Option<f64>| rel.map_or_else(|| "-".to_owned(), |rel| format!("{rel:.4}"));
        table.row(vec![
            name.clone(),
            format!("{}x{}", linear.out_features(), linear.in_features()),
            stored_as(linear),
            format!("{:.3}", bits(linear)),
            error(quality.and_then(|q| q.fit_rel)),
            error(quality.and_then(|q| q.heldout_rel)),
        ]);
    }
    text += &format!("\n{table}");
    for (name, reason) in packing.iter().flat_map(|packing| packing.retried()) {
        text += &format!("{name} was encoded on the host: {reason}\n");
    }
    for (name, reason) in packing.iter().flat_map(|packing| packing.dense()) {
        text += &format!("{name} stays dense: {reason}\n");
    }
    Ok(text.trim_end().to_owned())
}

fn quality_of<'a>(packing: &'a Packing, name: &str) -> Option<&'a lapidary::compress::tensor::Quality> {
    packing.tensors.iter().find(|entry| entry.name == name).and_then(|entry| match &entry.record {
        Record::Packed { quality, .. } => Some(quality),
        Record::Dense { .. } => None,
    })
}

fn stored_as(linear: &Linear) -> String {
    match linear {
        Linear::Dense(tensor) => tensor.dtype.to_string(),
        Linear::Packed { payload, .. } => format!("{} x rank {}", payload.shape().paths, payload.rank()),
    }
}

/// Stored bits a weight; a payload's header is not counted.
fn bits(linear: &Linear) -> f64 {
    let weights = (linear.out_features() * linear.in_features()) as f64;
    match linear {
        Linear::Dense(tensor) => 8.0 * tensor.bytes.len() as f64 / weights,
        Linear::Packed { payload, .. } => payload.bits() as f64 / weights,
    }
}

fn as_json(checkpoint: &Checkpoint, layers: &[(String, &Linear)], packing: Option<&Packing>) -> Value {
    let config = checkpoint.config();
    let layer = |(name, linear): &(String, &Linear)| {
        json!({
            "name": name,
            "shape": [linear.out_features(), linear.in_features()],
            "stored": stored_as(linear),
            "bits": bits(linear),
        })
    };
    json!({
        "model": checkpoint.path().display().to_string(),
        "family": config.family.name(),
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate": config.intermediate,
        "vocab": config.vocab,
        "tied": config.tied,
        "max_positions": config.max_positions,
        "linear_layers": layers.iter().map(layer).collect::<Vec<_>>(),
        "packing": packing,
    })
}
