//! Wide dictionaries: many atoms of one shape over a linear bulk, fitted in f32 on a device.
//!
//! ```text
//!     x ≈ μ + Vᵀ(Uᵀc + Σ_(active atoms k) f_k),    f_k = a·d_k (a ray)  or  a·(cos φ·d_k + sin φ·d'_k) (a circle)
//! ```
//!
//! V holds the r principal components that the fit works in, U (b x r, orthonormal) the bulk, and a row has exactly k atoms.
//! A circle is round, `d ⊥ d'` of one length ρ; its amplitude is 1, or `N(1, τ²)` with τ given.
//!
//! The codes c of the bulk are free, so they are eliminated: only `y = (I − UᵀU)x` reaches the atoms, and only that part of
//! theirs counts there. One round:
//!
//! 1. codes: the atoms of largest gain at `D·y`, a few at a time, each time all codes anew from the small normal equations
//!    of the row ([`ops::top_atoms`], [`support_gram`], [`sparse_code`]);
//! 2. decoders: `min ‖X − H·D‖²` over D, by conjugate gradients whose matrix `HᵀH` is only ever applied ([`sparse_rows`],
//!    [`atom_sums`], [`conjugate`]), from the D before;
//! 3. bulk: the b principal directions of `X − H·D`, which with 2. is the joint minimum over D and U for these codes;
//! 4. atoms that are on in fewer rows than a hundredth of their share begin anew at the worst explained rows.
//!
//! Every step is one launch over all fits of a batch: their results are those of one fit after another, bit for bit.
//!
//! [`ops::top_atoms`]: crate::ops::top_atoms
//! [`support_gram`]: crate::ops::support_gram
//! [`sparse_code`]: crate::ops::sparse_code
//! [`sparse_rows`]: crate::ops::sparse_rows
//! [`atom_sums`]: crate::ops::atom_sums
//! [`conjugate`]: crate::ops::conjugate
//!
//! | file | job |
//! |---|---|
//! | `source` | rows, from the heap, from mapped files, or planted |
//! | `plan` | what lies where in the arena, and so what a fit needs |
//! | `frame` | mean and principal components |
//! | `sources` | first guesses where atoms are fewer than dimensions: independent components, paired by their energy |
//! | `begin` | first guesses from rows, and atoms that begin anew |
//! | `codes` · `decoders` | steps 1 and 2 to 3 |
//! | `fit` | batches that fit, rounds, outcome |
//! | `heldout` | what a dictionary is worth on rows that it has not seen |
//! | `planted` | circles in a linear bulk, made on the device |
//! | `recovery` | planted circles held against those found |
//! | [`mod@bench`] | three sizes of planted circles, measured |

mod begin;
pub mod bench;
mod codes;
mod decoders;
mod fit;
mod frame;
mod heldout;
mod plan;
mod planted;
mod recovery;
mod source;
mod sources;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use fit::{Battery, Job, Usage, fit_battery, predicted_bytes};
pub use heldout::Codes;
pub use planted::Planted;
pub use recovery::recoveries;
pub use source::{Heap, Sharded, Source};

use super::AtomsError;

/// The shape of all atoms of a wide dictionary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A direction with a free amplitude: with these alone, a TopK linear dictionary.
    Ray,
    /// A round circle around the origin.
    #[default]
    Circle,
}

impl Kind {
    /// Rows of the decoder that one atom takes.
    pub fn rows(self) -> usize {
        match self {
            Self::Ray => 1,
            Self::Circle => 2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ray => "ray",
            Self::Circle => "circle",
        }
    }
}

/// How a wide dictionary is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WideParams {
    pub kind: Kind,
    /// K
    pub atoms: usize,
    /// k, the atoms of a row, at most [`MOST_ATOMS`](crate::ops::top_atoms::MOST_ATOMS)
    pub active: usize,
    /// b, directions of the linear bulk; 0 for none
    pub bulk: usize,
    /// r, principal components that the fit works in; all where there are fewer
    pub rank: usize,
    /// Turns in which a row chooses its atoms; as many as there are atoms is matching pursuit
    pub stages: usize,
    /// τ of circles, 0 to 0.3: with a free amplitude a circle is only its plane
    pub spread: f64,
    /// Most rounds
    pub rounds: usize,
    /// The fit has converged when the explained variance changes by less in a round
    pub settled: f64,
    pub seed: u64,
    /// Seconds after which a fit ends with the round it is in
    pub seconds: Option<f64>,
}

impl Default for WideParams {
    fn default() -> Self {
        Self {
            kind: Kind::Circle,
            atoms: 64,
            active: 3,
            bulk: 0,
            rank: 512,
            stages: 4,
            spread: 0.0,
            rounds: 30,
            settled: 1e-4,
            seed: 0,
            seconds: None,
        }
    }
}

/// How a fit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WideOutcome {
    /// The explained variance settled.
    Converged,
    RoundLimit,
    TimeLimit,
}

/// A fitted dictionary with what it is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct WideFit {
    pub outcome: WideOutcome,
    /// Explained variance on the fit rows, by rounds.
    pub explained: Vec<f64>,
    /// The same on held-out rows, their codes found anew; `None` without such rows.
    pub heldout: Option<f64>,
    /// Share of atoms that are on in fewer fit rows than a hundredth of their share, at the end.
    pub dead: f64,
    /// How many began anew, over all rounds.
    pub revived: usize,
    /// Circles that the independent components showed; `None` where the fit began at rows.
    pub paired: Option<usize>,
    pub dictionary: WideDictionary,
    /// Codes of the held-out rows.
    pub codes: Codes,
}

/// The dictionary itself, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WideDictionary {
    pub kind: Kind,
    /// p
    pub width: usize,
    /// r
    pub rank: usize,
    /// μ, p
    pub mean: Vec<f32>,
    /// V, r x p
    pub axes: Vec<f32>,
    /// U, b x r
    pub bulk: Vec<f32>,
    /// D, (K · rows an atom) x r
    pub decoder: Vec<f32>,
    /// Fit rows in which each atom is on
    pub activity: Vec<f32>,
}

impl WideParams {
    /// # Errors
    /// What cannot be asked for rows of this shape, with the figure.
    pub fn check(&self, rows: usize, width: usize) -> Result<(), AtomsError> {
        let most = crate::ops::top_atoms::MOST_ATOMS;
        let rank = self.rank.min(width);
        let refuse = |what: String| Err(AtomsError::Wide { what });
        match () {
            () if rows < 2 => Err(AtomsError::Rows { got: rows }),
            () if self.active == 0 || self.active > self.atoms.min(most) => refuse(format!(
                "active = {} atoms a row; 1 to {} of {} are possible",
                self.active,
                self.atoms.min(most),
                self.atoms
            )),
            () if self.stages == 0 || self.stages > self.active => {
                refuse(format!("stages = {}; 1 to active = {} are possible", self.stages, self.active))
            }
            () if self.bulk >= rank => refuse(format!(
                "a bulk of {} directions leaves nothing of {rank}: lower `bulk` or raise `rank`",
                self.bulk
            )),
            () if !(0.0..=0.3).contains(&self.spread) => {
                refuse(format!("spread = {}; 0 to 0.3 are possible", self.spread))
            }
            () if self.rounds == 0 => refuse("rounds = 0; at least one is needed".into()),
            () => Ok(()),
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        self.seconds.map(time)
    }
}
