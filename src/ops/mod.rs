//! One op is one stem: the `.rs` file defines it on the host, and states its tolerance where it has one.
//!
//! The decoder's ops: [`matmul`], [`dense_matvec`], [`sign_matvec`], [`rms_norm`], [`rope`], [`attention`], [`swiglu`],
//! [`geglu`], [`log_softmax`], [`coarse`], [`draw`]; on devices also [`gated`], [`non_finite`] and [`scatter`]. The encoder's: [`syrk`], [`spd_solve`], [`polar`], [`rank_one`], [`row_flips`], [`column_search`].
//! Tuning's, each a gradient: [`attention_backward`], [`rms_norm_backward`], [`gated_backward`], [`squared_error`],
//! [`divergence`], [`factor_gradient`], and [`adam`]. Wide dictionaries': [`top_atoms`], [`support_gram`], [`sparse_code`],
//! [`sparse_rows`], [`atom_lists`], [`atom_sums`], [`conjugate`], [`round_atoms`], [`powers`], [`principal`], [`random`]. The arrow solver's: [`cholesky`], [`triangular`], [`matvec`]. Random numbers: [`splitmix`].

/// A [`Program`](crate::device::arena::Program): stem, function, threads, constants.
macro_rules! program {
    ($stem:literal, $entry:literal, $threads:literal, $constants:expr) => {
        Program {
            name: $stem,
            entry: $entry,
            threads: $threads,
            shared: 0,
            constants: &$constants,
            cuda: include_str!(concat!($stem, ".cu")),
            wgsl: include_str!(concat!($stem, ".wgsl")),
        }
    };
}

/// The same for a kernel that only CUDA has: on other devices it is refused before anything is queued. Bytes of shared
/// memory may follow.
macro_rules! cuda_program {
    ($stem:literal, $entry:literal, $threads:literal, $constants:expr) => {
        cuda_program!($stem, $entry, $threads, $constants, 0)
    };
    ($stem:literal, $entry:literal, $threads:literal, $constants:expr, $shared:expr) => {
        Program {
            name: $stem,
            entry: $entry,
            threads: $threads,
            shared: $shared,
            constants: &$constants,
            cuda: include_str!(concat!($stem, ".cu")),
            wgsl: "",
        }
    };
}

pub mod adam;
#[cfg(feature = "cuda")]
pub mod arrow_batch;
#[cfg(feature = "cuda")]
pub mod arrow_border;
#[cfg(feature = "cuda")]
pub mod arrow_solve;
pub mod atom_lists;
pub mod atom_sums;
pub mod attention;
pub mod attention_backward;
pub mod attention_batch;
mod attention_tf32;
pub mod cholesky;
pub mod coarse;
pub mod column_search;
pub mod column_search_batch;
pub mod column_squares;
pub mod conjugate;
pub mod cross_entropy;
pub mod dense_matvec;
pub mod divergence;
pub mod dots;
pub mod draw;
pub mod dtype;
pub mod dtype_k;
pub mod exp;
pub mod factor_gradient;
pub mod gated;
pub mod gated_backward;
pub mod gather;
pub mod gauge_rows;
pub mod geglu;
pub mod gemm;
pub mod gemm_library;
pub mod log_softmax;
pub mod matmul;
pub mod matvec;
pub mod non_finite;
pub mod pair_solve;
pub mod polar;
pub mod polar_batch;
pub mod powers;
pub mod principal;
#[cfg(feature = "cuda")]
pub mod quadratic_try;
pub mod random;
pub mod rank_one;
pub mod rank_one_batch;
pub mod real;
pub mod rms_norm;
pub mod rms_norm_backward;
pub mod rope;
pub mod round_atoms;
#[cfg(feature = "cuda")]
pub mod row_factor;
pub mod row_flips;
pub mod scale;
pub mod scatter;
pub mod sign_matvec;
pub mod sparse_code;
pub mod sparse_rows;
pub mod spd_factor;
#[cfg(feature = "cuda")]
pub mod spd_inverse;
pub mod spd_solve;
#[cfg(feature = "cuda")]
pub mod spectrum;
pub mod splitmix;
pub mod squared_error;
pub mod support_gram;
pub mod swiglu;
pub mod syrk;
pub mod top_atoms;
pub mod triangular;

pub use dtype::Dtype;

/// Every kernel source, with constants as they are used: what a compiler without a card can check.
#[cfg(feature = "cuda")]
pub fn kernel_sources() -> Vec<crate::device::cuda::Source> {
    let rows = [1, 2, 3, 16].into_iter().flat_map(|dim| [row_factor::source(dim), arrow_solve::source(dim)]);
    let batches = (1..=arrow_batch::LARGEST_DIM).map(arrow_batch::source);
    let others = [
        spd_inverse::source(spd_inverse::LEAF),
        arrow_border::source(),
        quadratic_try::source(),
        spectrum::source(),
    ];
    let arenas = programs().into_iter().chain(tuning_programs()).chain(dictionary_programs());
    let arenas = arenas.map(|program| program.source());
    let mut sources: Vec<crate::device::cuda::Source> = Vec::new();
    for source in rows.chain(batches).chain(others).chain(arenas) {
        // Functions of one text with the same constants are compiled together.
        if !sources.iter().any(|known| known.text == source.text && known.constants == source.constants) {
            sources.push(source);
        }
    }
    sources
}

/// The kernels of an arena that only CUDA has: those of tuning.
#[cfg(feature = "cuda")]
pub fn tuning_programs() -> Vec<&'static crate::device::arena::Program> {
    let plain = [&attention_backward::KEPT, &attention_backward::QUERIES, &attention_backward::KEYS];
    let tensor = [&attention_tf32::KEPT, &attention_tf32::QUERIES, &attention_tf32::KEYS];
    let attention = plain.into_iter().flatten().chain(tensor.into_iter().flatten());
    let others = [
        &adam::ADAM,
        &column_squares::COLUMN_SQUARES,
        &cross_entropy::CROSS_ENTROPY,
        &divergence::DIVERGENCE,
        &factor_gradient::FACTOR_GRADIENT,
        &gated_backward::GATED_KEPT,
        &gated_backward::GATED_BACKWARD,
        &gemm::GEMM_TF32,
        &rms_norm_backward::RMS_NORM_BACKWARD,
        &squared_error::SQUARED_ERROR,
    ];
    attention.map(|kernel| &kernel.program).chain(others).collect()
}

/// The kernels of an arena that only CUDA has: those of dictionaries.
#[cfg(feature = "cuda")]
pub fn dictionary_programs() -> Vec<&'static crate::device::arena::Program> {
    vec![
        &atom_lists::COUNT,
        &atom_lists::STARTS,
        &atom_lists::FILL,
        &atom_sums::ATOM_SUMS,
        &conjugate::STEP,
        &conjugate::TURN,
        &powers::POWERS,
        &random::NORMAL,
        &random::CODE,
        &round_atoms::ROUND_ATOMS,
        &sparse_code::RAY_CODE,
        &sparse_code::CIRCLE_CODE,
        &sparse_rows::SPARSE_ROWS,
        &support_gram::SUPPORT_GRAM,
        &top_atoms::TOP_ATOMS,
    ]
}

/// Every kernel of an arena, with its constants as they are used: what a compiler without a card can check.
pub fn programs() -> Vec<&'static crate::device::arena::Program> {
    let attention = [&attention_batch::ATTENTION, &attention_batch::ATTENTION_CACHED].into_iter().flatten();
    let others = [
        &column_search_batch::COLUMN_SEARCH,
        &dots::ROW_DOTS,
        &dots::COL_DOTS,
        &dots::INNER,
        &draw::DRAW,
        &gated::GATED,
        &gather::GATHER,
        &gauge_rows::GAUGE_ROWS,
        &gemm::GEMM,
        &log_softmax::LOG_PROBABILITY,
        &non_finite::NON_FINITE,
        &pair_solve::PAIR_SOLVE,
        &polar_batch::POLAR_SCALE,
        &polar_batch::POLAR_CHECK,
        &rank_one_batch::RANK_ONE,
        &rms_norm::RMS_NORM,
        &rope::ROPE,
        &row_flips::ROW_FLIPS,
        &scale::SCALE,
        &scatter::SCATTER,
        &spd_factor::SCALE,
        &spd_factor::EQUILIBRATE,
        &spd_factor::FACTOR_PANEL,
        &spd_factor::GATHER,
        &spd_factor::SOLVE,
        &spd_factor::LEAF,
    ];
    attention.chain(others).collect()
}
