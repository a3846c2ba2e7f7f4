use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use serde_json::{Value, json};

use lapidary::atoms::baseline::Baselines;
use lapidary::atoms::{self, Code, FitParams, Outcome, Shape};
use lapidary::device::write_durably;
use lapidary::explain::{
    Centre, Order, WordRows, WordSet, coherence, control, cyclic_orders, read_words, word_angles, word_rows,
};
use lapidary::model::{Decoder, Tokenizer};

use super::{Args, Explained, explained, one_layer};
use crate::cli::table::Table;
use crate::cli::{open, print, print_json, wrote};

/// Controls drawn for each layer.
const CONTROLS: u64 = 5;

/// What words look like after one block.
struct Layer {
    /// From 0.
    layer: usize,
    explained: Explained,
    /// Words in the order of their angles on the best circle, with the coherence of their own order.
    circle: Option<Circle>,
    controls: Controls,
}

/// What was born from [`CONTROLS`] draws of rows with the same covariance.
#[derive(Debug, PartialEq, Eq)]
struct Controls {
    /// Draws with a circle.
    circles: usize,
    /// Draws without one whose time was up: they say nothing.
    out_of_time: usize,
}

struct Circle {
    atom: usize,
    angles: Vec<Option<f64>>,
    coherence: f64,
}

impl fmt::Display for Controls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} of {CONTROLS}", self.circles)?;
        match self.out_of_time {
            0 => Ok(()),
            count => write!(f, ", {count} out of time"),
        }
    }
}

/// Explains labelled words after one block, or after every one.
pub fn run(args: &Args, file: &Path, params: &FitParams) -> Result<ExitCode> {
    let sets = read_words(file).into_diagnostic()?;
    let mut names: Vec<&String> = if args.sets.is_empty() { sets.keys().collect() } else { Vec::new() };
    for name in &args.sets {
        if !sets.contains_key(name) {
            let there = sets.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(miette!("{} has no words `{name}`; there are: {there}", file.display()));
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (checkpoint, decoder) = open(&args.input)?;
    let tokenizer = checkpoint.tokenizer().into_diagnostic()?;
    let start = checkpoint.config().start_token();
    let mut reports = Vec::new();
    for name in names {
        reports.push(explain_set(args, params, (name, &sets[name]), (&decoder, &tokenizer, start))?);
    }
    if args.json {
        print_json(&reports)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn explain_set(
    args: &Args,
    params: &FitParams,
    (name, set): (&str, &WordSet),
    (decoder, tokenizer, start): (&Decoder, &Tokenizer, Option<u32>),
) -> Result<Value> {
    let rows = word_rows(decoder, tokenizer, start, set).into_diagnostic()?;
    if !rows.several.is_empty() {
        eprintln!("{name}: several tokens, of which the last is read: {}", rows.several.join(", "));
    }
    let all = args.layer.as_deref() == Some("all");
    let chosen: Vec<usize> =
        if all { (0..rows.layers.len()).collect() } else { vec![one_layer(args, rows.layers.len())?] };
    let folder = args.output.as_ref().map(|output| output.join(name));
    let mut layers: Vec<Layer> = Vec::new();
    for layer in chosen {
        eprintln!("{name}: block {}", layer + 1);
        layers.push(explain_layer(args, params, (name, set), &rows, layer)?);
        // What is found stays, whatever becomes of the rest.
        if let (Some(folder), [.., last]) = (&folder, &layers[..]) {
            let of_block = folder.join(format!("block-{:02}", layer + 1));
            last.explained.write(if all { &of_block } else { folder })?;
            let found = serde_json::to_vec_pretty(&report(name, set, &layers)).into_diagnostic()?;
            let file = folder.join("words.json");
            let written = write_durably(&file, |out| out.write_all(&found));
            written.into_diagnostic().wrap_err_with(|| file.display().to_string())?;
        }
    }
    if let Some(folder) = &folder {
        wrote(folder);
    }
    if !args.json {
        show(name, set, &layers)?;
        if let ([layer], false) = (&layers[..], all) {
            layer.explained.tell()?;
        }
    }
    Ok(report(name, set, &layers))
}

/// The block whose circle has the words most in their own order.
fn best(layers: &[Layer]) -> Option<(&Layer, &Circle)> {
    let circles = layers.iter().filter_map(|layer| Some((layer, layer.circle.as_ref()?)));
    circles.max_by(|(_, a), (_, b)| a.coherence.total_cmp(&b.coherence))
}

fn explain_layer(
    args: &Args,
    params: &FitParams,
    (name, set): (&str, &WordSet),
    rows: &WordRows,
    layer: usize,
) -> Result<Layer> {
    let x = rows.layer(layer, Centre::from(args.centre));
    let title = format!("{name}: {} after block {}", args.input.display(), layer + 1);
    let labels = (rows.word.clone(), set.words.clone());
    let mut explained = explained(title, (x, rows.width), labels, params, |_| false)?;
    let controls = controls(&explained.x, rows.width, params)?;
    let mut circle: Option<Circle> = None;
    for atom in 0..explained.fit.dictionary.atoms.len() {
        if !matches!(explained.fit.dictionary.atoms[atom].shape, Shape::Circle(_)) {
            continue;
        }
        let found = read_circle(&explained.codes, rows, set.words.len(), atom);
        explained.notes[atom].push(format!("round it: {}", around(&found.angles, &set.words)));
        explained.notes[atom].push(format!("coherence of the words' own order: {:.3}", found.coherence));
        if circle.as_ref().is_none_or(|best| found.coherence > best.coherence) {
            circle = Some(found);
        }
    }
    Ok(Layer { layer, explained, circle, controls })
}

/// Fits each draw as the rows themselves are fitted.
fn controls(x: &[f64], width: usize, params: &FitParams) -> Result<Controls> {
    let mut controls = Controls { circles: 0, out_of_time: 0 };
    for seed in 0..CONTROLS {
        let fit = atoms::fit(&control(x, width, seed), width, params);
        let fit = fit.into_diagnostic().wrap_err_with(|| format!("control {}", seed + 1))?;
        if fit.dictionary.atoms.iter().any(|atom| matches!(atom.shape, Shape::Circle(_))) {
            controls.circles += 1;
        } else if fit.certificate.outcome == Outcome::TimeLimit {
            controls.out_of_time += 1;
        }
    }
    Ok(controls)
}

fn read_circle(codes: &[Code], rows: &WordRows, words: usize, atom: usize) -> Circle {
    let angles = word_angles(codes, &rows.word, words, atom);
    let own: Order = (0..words).collect();
    let coherence = coherence(&angles, &own);
    Circle { atom, angles, coherence }
}

/// Words by their angles, from the first one on; a circle has no direction, so in that in which more of them rise.
fn around(angles: &[Option<f64>], words: &[String]) -> String {
    let first = angles.first().copied().flatten().unwrap_or(0.0);
    let from_first = |angle: f64| (angle - first).rem_euclid(std::f64::consts::TAU);
    let mut on: Vec<(f64, usize)> =
        angles.iter().enumerate().filter_map(|(k, angle)| Some((from_first((*angle)?), k))).collect();
    on.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rising = on.windows(2).filter(|pair| pair[0].1 < pair[1].1).count();
    if let [_, others @ ..] = &mut on[..]
        && 2 * rising < others.len()
    {
        others.reverse();
    }
    on.into_iter().map(|(_, k)| words[k].as_str()).collect::<Vec<_>>().join(" ")
}

/// Place of the words' own order among all cyclic orders, each by the best layer: 1 is first. Up to 8 words.
fn order_rank(layers: &[Layer], words: usize) -> Option<(usize, usize)> {
    if !(3..=8).contains(&words) || layers.iter().all(|layer| layer.circle.is_none()) {
        return None;
    }
    let best = |order: &Order| {
        let circles = layers.iter().filter_map(|layer| layer.circle.as_ref());
        circles.map(|circle| coherence(&circle.angles, order)).fold(0.0, f64::max)
    };
    let orders = cyclic_orders(words);
    let own = best(&orders[0]);
    Some((1 + orders[1..].iter().filter(|order| best(order) >= own).count(), orders.len()))
}

fn shapes(layer: &Layer) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for atom in &layer.explained.fit.dictionary.atoms {
        let name = atom.shape.to_string();
        match counts.iter_mut().find(|(other, _)| *other == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn show(name: &str, set: &WordSet, layers: &[Layer]) -> Result<()> {
    let mut table = Table::new(&[
        "block",
        "explained",
        "components",
        "directions",
        "atoms",
        "coherence",
        "round the circle",
        "false circles",
    ]);
    for layer in layers {
        let circle = layer.circle.as_ref();
        let plain = |of: fn(Baselines) -> f64| {
            layer.explained.baselines.map_or_else(String::new, |b| format!("{:.3}", of(b)))
        };
        table.row(vec![
            (layer.layer + 1).to_string(),
            format!("{:.3}", layer.explained.measures.explained),
            plain(|b| b.pca),
            plain(|b| b.topk),
            shapes(layer),
            circle.map_or_else(String::new, |circle| format!("{:.3}", circle.coherence)),
            circle.map_or_else(String::new, |circle| around(&circle.angles, &set.words)),
            layer.controls.to_string(),
        ]);
    }
    let mut text = format!(
        "{name}\n{table}components and directions: what principal components and TopK directions explain with as many coefficients\n"
    );
    if let Some((rank, of)) = order_rank(layers, set.words.len()) {
        text += &format!("the words' own order is number {rank} of {of} cyclic orders\n");
    }
    print(text.trim_end())
}

fn report(name: &str, set: &WordSet, layers: &[Layer]) -> Value {
    let (best, rank) = (best(layers), order_rank(layers, set.words.len()));
    let layer_json = |layer: &Layer| {
        json!({
            "block": layer.layer + 1,
            "explained": layer.explained.measures.explained,
            "pca": layer.explained.baselines.map(|b| b.pca),
            "topk": layer.explained.baselines.map(|b| b.topk),
            "shapes": layer.explained.fit.dictionary.atoms.iter().map(|atom| atom.shape.to_string()).collect::<Vec<_>>(),
            "atom": layer.circle.as_ref().map(|circle| circle.atom),
            "coherence": layer.circle.as_ref().map(|circle| circle.coherence),
            "order": layer.circle.as_ref().map(|circle| around(&circle.angles, &set.words)),
            "false_circles": layer.controls.circles,
            "controls_out_of_time": layer.controls.out_of_time,
            "controls": CONTROLS,
            "seconds": layer.explained.fit.certificate.seconds,
        })
    };
    json!({
        "words": name,
        "coherence": best.map(|(_, circle)| circle.coherence),
        "block": best.map(|(layer, _)| layer.layer + 1),
        "order_rank": rank.map(|(rank, _)| rank),
        "orders": rank.map(|(_, of)| of),
        "layers": layers.iter().map(layer_json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A flat cloud of 40 rows in four dimensions.
    fn rows() -> Vec<f64> {
        (0..160).map(|i| f64::from(i * i * 7919 % 1009) / 1009.0 - 0.5).collect()
    }

    #[test]
    fn words_round_a_circle_begin_with_the_first_and_rise() {
        let words = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let around = |angles: [f64; 5]| super::around(&angles.map(Some), &words);
        assert_eq!(around([1.0, 2.0, 3.0, 4.0, 5.0]), "a b c d e");
        assert_eq!(around([5.0, 4.0, 3.0, 2.0, 1.0]), "a b c d e");
        assert_eq!(around([0.0, 2.0, 1.0, 3.0, 4.0]), "a c b d e");
        assert_eq!(super::around(&[Some(1.0), None, Some(0.5), None, Some(0.8)], &words), "a c e");
        assert_eq!(super::around(&[None; 5], &words), "");
    }

    #[test]
    fn controls_that_had_no_time_are_not_free_of_circles() {
        let none = FitParams { time: Some(Duration::ZERO), ..FitParams::default() };
        let controls = controls(&rows(), 4, &none).unwrap();
        assert_eq!(controls, Controls { circles: 0, out_of_time: CONTROLS as usize });
        assert_eq!(controls.to_string(), "0 of 5, 5 out of time");
    }

    #[test]
    fn a_control_that_cannot_be_fitted_is_an_error() {
        let mut rows = rows();
        rows[9] = f64::NAN;
        let error = controls(&rows, 4, &FitParams::default()).unwrap_err();
        assert!(error.to_string().contains("control 1"), "{error:?}");
    }
}
