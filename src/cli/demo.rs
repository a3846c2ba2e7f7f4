use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::compress::calibration::{CalibrationParams, Source};
use lapidary::compress::observer::Silent;
use lapidary::compress::plan::Plan;
use lapidary::compress::recipe::{Recipe, RecipeName};
use lapidary::compress::self_written::WriteParams;
use lapidary::compress::tuning::Tuning;
use lapidary::compress::{Encoder, PackParams, pack};
use lapidary::eval::{Original, Scores, evaluate};
use lapidary::model::text::{Text, Windows};
use lapidary::model::{Cache, Checkpoint, Decoder, Tokenizer};
use lapidary::ops::log_softmax::argmax;

use super::progress::bar;
use super::table::{Table, megabytes};
use super::{open, print};

/// The embedded model, as tools/tiny made it.
const MODEL: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("../../assets/tiny/config.json")),
    ("model.safetensors", include_bytes!("../../assets/tiny/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../assets/tiny/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../assets/tiny/tokenizer_config.json")),
];
const CALIBRATION: &str = include_str!("../../assets/tiny/calibration.txt");
const TEST: &str = include_str!("../../assets/tiny/test.txt");

/// Bits a weight at which the demo packs.
const BUDGETS: [f64; 2] = [2.0, 1.0];
const WINDOW: usize = 128;
const WINDOWS: usize = 60;
const PROMPTS: [&str; 2] = ["Three days after Monday is", "Five hours after nine o'clock is"];

/// Tokens that `best` is fitted to and judged by, its passes and the positions of a step: seconds on two cores.
const BEST_TOKENS: (usize, usize) = (2048, 512);
const BEST_PASSES: usize = 4;
const BEST_BATCH: usize = 512;

/// Pack the embedded model with three recipes, and show what remains
#[derive(clap::Args)]
pub struct Args {
    /// Keep the embedded model and the packed ones in this new folder [default: nothing is kept]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let began = Instant::now();
    let kept = args.output.is_some();
    let folder = args
        .output
        .unwrap_or_else(|| std::env::temp_dir().join(format!("lapidary-demo-{}", std::process::id())));
    std::fs::create_dir(&folder)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot create {}; name a new folder with -o", folder.display()))?;
    let report = show(&folder);
    if !kept {
        std::fs::remove_dir_all(&folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    }
    print(&report?)?;
    let place = if kept {
        format!("the models are in {}", folder.display())
    } else {
        "keep the models with -o DIR".into()
    };
    print(&format!("{:.1} s; {place}", began.elapsed().as_secs_f64()))?;
    Ok(ExitCode::SUCCESS)
}

/// One row of the table.
struct Row {
    name: String,
    bits: f64,
    bytes: u64,
    heldout: Option<f64>,
    scores: Scores,
    answers: Vec<String>,
}

fn show(folder: &Path) -> Result<String> {
    let source = folder.join("original");
    write_model(&source)?;
    let (checkpoint, original) = open(&source)?;
    let tokenizer = checkpoint.tokenizer().into_diagnostic()?;
    let test = Text::from_memory("test.txt", TEST).into_diagnostic()?;
    let mut windows = Windows::cut(&test, &tokenizer, WINDOW, None).into_diagnostic()?;
    windows.truncate(WINDOWS);
    let config = checkpoint.config();

    let both = [RecipeName::Nvg, RecipeName::DualSvid];
    let mut models: Vec<_> = both.into_iter().flat_map(|recipe| BUDGETS.map(|bits| (recipe, bits))).collect();
    models.insert(0, (RecipeName::Best, 1.0));
    let progress = bar(1 + models.len() as u64, "models");
    let scores = evaluate(&original, None, &windows, &|_| ()).into_diagnostic()?;
    progress.inc(1);
    let mut rows = vec![Row {
        name: "original".into(),
        bits: 16.0,
        bytes: stored_bytes(&source)?,
        heldout: None,
        scores,
        answers: answers(&original, &tokenizer)?,
    }];
    for (recipe, bits) in models {
        let name = format!("{recipe}-{bits:.1}");
        progress.set_message(name.clone());
        rows.push(packed_row(&checkpoint, &original, &windows, recipe, bits, &folder.join(&name))?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(format!(
        "A Llama of {} blocks and width {}, trained on sentences about days, months, hours and numbers.\n\
         Each linear layer W becomes Σ diag(h) U diag(l) Vᵀ diag(g): signs U and V, scales h, l and g.\n\n{}\n{LEGEND}",
        config.layers,
        config.hidden,
        table(&rows)
    ))
}

const LEGEND: &str = "\
bits        stored bits a weight of the packed layers (embedding and norms stay in 16 bits)
error       of the layers' outputs on held-out text, relative, mean over layers; of best, before gradients and against its
            own targets
perplexity  on unseen text: between how many tokens the model hesitates; lower is better
KL          mean divergence from the original's predictions, nats; 0 is identical
agree       share of positions where packed and original find the same token most likely
answers     how the model ends the two sentences (Thursday and two are right)
nvg fits to what each layer sees in a calibration text; dual-svid looks at the weights alone. best runs the original beside
the packed model, calibrates with text that the model writes as well, and lets gradients move scales and signs at the end.
";

fn table(rows: &[Row]) -> Table {
    let mut table =
        Table::new(&["model", "bits", "size", "error", "perplexity", "KL", "agree", PROMPTS[0], PROMPTS[1]]);
    for row in rows {
        let divergence = row.scores.divergence.as_ref();
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let mut cells = vec![
            row.name.clone(),
            format!("{:.3}", row.bits),
            megabytes(row.bytes),
            or_dash(row.heldout.map(|rel| format!("{rel:.3}"))),
            format!("{:.2}", row.scores.perplexity),
            or_dash(divergence.map(|d| format!("{:.3}", d.mean_kl))),
            or_dash(divergence.map(|d| format!("{:.1} %", 100.0 * d.top1_agreement))),
        ];
        cells.extend(row.answers.iter().cloned());
        table.row(cells);
    }
    table
}

fn write_model(folder: &Path) -> Result<()> {
    std::fs::create_dir(folder).into_diagnostic()?;
    for (name, bytes) in MODEL {
        let file = folder.join(name);
        std::fs::write(&file, bytes).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    }
    Ok(())
}

fn packed_row(
    checkpoint: &Checkpoint,
    original: &Decoder,
    windows: &Windows,
    recipe: RecipeName,
    bits: f64,
    output: &Path,
) -> Result<Row> {
    let text = Text::from_memory("calibration.txt", CALIBRATION).into_diagnostic()?;
    let best = recipe == RecipeName::Best;
    let (fit, heldout) = BEST_TOKENS;
    let short = |tuning: Tuning| match best {
        true => Tuning { passes: BEST_PASSES, batch: BEST_BATCH, ..tuning },
        false => tuning,
    };
    let whole = Recipe::of(recipe);
    let params = PackParams {
        output: output.into(),
        plan: Plan::uniform(bits),
        recipe: Recipe {
            reconstruct: short(whole.reconstruct),
            distill: short(whole.distill),
            more: 0.0,
            ..whole
        },
        encoder: Encoder::Reference,
        texts: if best { Source::mixed(Some(text), WriteParams::default()) } else { Source::text(text) },
        calibration: CalibrationParams {
            window: WINDOW,
            fit_tokens: best.then_some(fit),
            heldout_tokens: best.then_some(heldout),
        },
        resume: false,
    };
    let packing = pack(checkpoint, params, &Silent).into_diagnostic()?;
    let (packed, decoder) = open(output)?;
    Ok(Row {
        name: format!("{recipe} at {bits:.1}"),
        bits: packing.totals.body_bits,
        bytes: stored_bytes(output)?,
        heldout: packing.totals.mean_heldout_rel,
        scores: evaluate(&decoder, Some(Original::Loaded(original)), windows, &|_| ()).into_diagnostic()?,
        answers: answers(&decoder, &packed.tokenizer().into_diagnostic()?)?,
    })
}

fn stored_bytes(folder: &Path) -> Result<u64> {
    Ok(std::fs::metadata(folder.join("model.safetensors")).into_diagnostic()?.len())
}

/// The most likely ending of each prompt, up to the full stop.
fn answers(decoder: &Decoder, tokenizer: &Tokenizer) -> Result<Vec<String>> {
    const MOST: usize = 6;
    let answer = |prompt: &&str| -> Result<String> {
        let mut cache = Cache::new(decoder.config(), 32);
        let mut next = tokenizer.encode(prompt).into_diagnostic()?;
        let mut written = Vec::new();
        while written.len() < MOST {
            let logits = decoder.next_logits(&next, &mut cache).into_diagnostic()?;
            next = vec![argmax(&logits) as u32];
            written.extend(&next);
            let text = tokenizer.decode(&written).into_diagnostic()?;
            if let Some((answer, _)) = text.split_once(['.', '\n']) {
                return Ok(answer.trim().to_owned());
            }
        }
        Ok(format!("{} …", tokenizer.decode(&written).into_diagnostic()?.trim()))
    };
    PROMPTS.iter().map(answer).collect()
}
