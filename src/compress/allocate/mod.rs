//! Bits where they help most: how far a block's output moves is measured for each of its tensors at a few budgets, and
//! the bits of a plan are spent where that response is steepest.
//!
//! `response` measures, `spend` distributes; the result is a [`Plan`] like any other.

mod response;
mod spend;

use super::calibration::{Calibration, CalibrationParams, Draft, Read, Source};
use super::encoder::Encoder;
use super::error::PackError;
use super::observer::{Event, Observer, Stage};
use super::plan::{Assignment, Entry, Plan};
use super::recipe::Tokens;
use super::self_written::write;
use super::stream::Stream;
use crate::blr::Budget;
use crate::model::{Checkpoint, Decoder, LinearName, Site};

pub use response::Response;
pub use spend::{Spent, spend};

/// What is measured on, and what there is to spend.
pub struct AllocateParams {
    pub encoder: Encoder,
    /// What its Grams come from and its responses are measured on, in windows of this length.
    pub texts: Vec<Source>,
    pub window: usize,
    /// Whose bits are spent; what it keeps dense stays so.
    pub plan: Plan,
}

/// A plan that costs what another one did.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub plan: Plan,
    /// One for each tensor that is packed, with the bits a weight that it got.
    pub responses: Vec<(Response, f64)>,
    /// The sum of what blocks lose, as the responses say: at the budgets of the plan that was given, and of this one.
    pub expected: [f64; 2],
}

/// Tokens that responses are measured with: what Grams of one stream take.
const TOKENS: Tokens = Tokens::PUBLISHED;

/// Measures the responses of all tensors, and spends what the plan spends where they are steepest. Every tensor gets
/// between half and twice its bits; one that cannot be measured keeps them, with a warning.
///
/// Cost: three times what encoding the model takes, and the original's way through the text. The same plan from the same
/// text on the same device.
pub fn allocate(
    checkpoint: &Checkpoint,
    params: AllocateParams,
    observer: &dyn Observer,
) -> Result<Allocation, PackError> {
    let decoder = Decoder::load(checkpoint)?;
    let layers = decoder.config().layers;
    let assignments = params.plan.resolve(layers)?;
    let calibration = calibration(checkpoint, &decoder, &params, observer)?;
    params.encoder.prepare()?;
    let mut stream = Stream::open(calibration, &decoder, None, &params.encoder, observer)?;
    let mut measure = response::Measure::new(&decoder, &params.encoder);
    let (mut responses, mut tensors) = (Vec::new(), 0);
    observer.event(Event::Begin { layers });
    for (layer, assignments) in assignments.iter().enumerate() {
        observer.event(Event::Stage { layer, stage: Stage::Calibrate });
        let grams = stream.grams(&decoder, &Site::ALL)?;
        let entering = stream.entering(&decoder)?;
        observer.event(Event::Stage { layer, stage: Stage::Encode });
        let budgets: Vec<(LinearName, Budget)> = (LinearName::ALL.into_iter().zip(assignments))
            .filter_map(|(name, assignment)| match assignment {
                Assignment::Pack(budget) => Some((name, *budget)),
                Assignment::KeepDense => None,
            })
            .collect();
        tensors += budgets.len();
        responses.extend(measure.block(layer, &budgets, (grams, &entering), stream.calibration())?);
        observer.event(Event::Stage { layer, stage: Stage::Advance });
        stream.advance(&decoder)?;
    }
    match tensors - responses.len() {
        0 => {}
        missing if missing == tensors => return Err(PackError::NoResponse { tensors }),
        missing => observer.event(Event::Warning(&format!(
            "{missing} of {tensors} tensors could not be measured at two budgets, and keep their bits"
        ))),
    }
    Ok(allocation(&params.plan, &assignments, responses))
}

fn calibration(
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    params: &AllocateParams,
    observer: &dyn Observer,
) -> Result<Calibration, PackError> {
    if params.texts.is_empty() {
        return Err(PackError::NoTextToMeasure);
    }
    let tokenizer = checkpoint.tokenizer()?;
    let (window, bos) = (params.window, checkpoint.config().start_token());
    let cut = CalibrationParams { window, fit_tokens: None, heldout_tokens: None };
    let draft = Draft::prepare(params.texts.clone(), &tokenizer, bos, cut, TOKENS, Read::AsNeeded)?;
    let Some(own) = draft.record().self_written else { return Ok(draft.finish(&[])) };
    let tokens = own.fit_tokens + own.heldout_tokens;
    observer.event(Event::BeginText { tokens });
    let (device, extent) = (params.encoder.device(), (tokens / window, window));
    let written = write(decoder, &tokenizer, device, extent, own.params, &draft.given(), observer)?;
    Ok(draft.finish(&written))
}

/// The plan that the responses ask for.
fn allocation(plan: &Plan, assignments: &[[Assignment; 7]], responses: Vec<Response>) -> Allocation {
    let Spent { bits, expected } = spend(&responses);
    let mut allocated = Plan { kv_factor: 1.0, ..Plan::uniform(plan.bits) };
    for (layer, assignments) in assignments.iter().enumerate() {
        for (name, assignment) in LinearName::ALL.into_iter().zip(assignments) {
            let entry = match assignment {
                Assignment::Pack(budget) => {
                    Entry { bits: Some(budget.bits * budget.factor), keep_dense: None }
                }
                Assignment::KeepDense => Entry { bits: None, keep_dense: Some(true) },
            };
            allocated.tensors.insert(name.prefix(layer), entry);
        }
    }
    for (response, bits) in responses.iter().zip(&bits) {
        let entry = Entry { bits: Some(*bits), keep_dense: None };
        allocated.tensors.insert(response.name.clone(), entry);
    }
    Allocation { plan: allocated, responses: responses.into_iter().zip(bits).collect(), expected }
}
