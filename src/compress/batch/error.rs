use crate::compress::context::ContextError;
use crate::compress::latents::SpectrumError;
use crate::compress::round::RoundError;
use crate::ops::column_search_batch::MOST_RANK;

/// Why a candidate has to be encoded by the reference instead, or stays dense.
#[derive(Debug, thiserror::Error)]
pub enum CandidateError {
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error("the weight is zero wherever its input is not")]
    ZeroWeight,
    #[error(transparent)]
    Spectrum(#[from] SpectrumError),
    #[error("its rank of {rank} is above {most}, the most that the kernels of devices take")]
    Rank { rank: usize, most: usize },
    #[error("the gauge rotation is singular in f32")]
    SingularGauge,
    #[error("the error is not finite in f32, or a device cut the loops of a step short")]
    NotFinite,
    #[error(transparent)]
    Round(#[from] RoundError),
}

/// Refuses a rank that the kernels of devices do not take.
pub fn check_rank(rank: usize) -> Result<(), CandidateError> {
    match rank {
        rank if rank > MOST_RANK => Err(CandidateError::Rank { rank, most: MOST_RANK }),
        _ => Ok(()),
    }
}
