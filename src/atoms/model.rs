use super::shape::LARGEST_BASIS;
use super::{Shape, Space};

/// One atom of a dictionary: a shape placed in the space of the fit, `f(t) = Bᵀφ(t)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Atom {
    pub shape: Shape,
    /// B, M x r, row-major, in units of [`Space::scale`].
    pub decoder: Vec<f64>,
    /// Standard deviation τ of the amplitude around 1; 0 where the amplitude is 1 whenever the atom is on.
    pub spread: f64,
    /// Share of the rows in which it is on.
    pub activity: f64,
    /// λ, in units of 1/σ².
    pub smoothing: f64,
}

/// One atom's part in a row: `a·f(t)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Active {
    pub atom: usize,
    /// t, as [`Shape`] has it.
    pub at: [f64; 2],
    /// a.
    pub amplitude: f64,
}

/// What explains one row: its active atoms, by rising number.
pub type Code = Vec<Active>;

/// A dictionary of typed shapes: `x ≈ μ + s·Vᵀ(b + Σ_active a·Bᵀφ(t))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dictionary {
    pub space: Space,
    /// b, r numbers: what is left of a row when nothing is on.
    pub base: Vec<f64>,
    pub atoms: Vec<Atom>,
    /// σ², the noise variance a component.
    pub noise: f64,
    /// Most atoms that may be on in one row.
    pub most_active: usize,
    /// What the base is while the dictionary is fitted.
    pub centre: Centre,
}

/// Where the rows' centre lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Centre {
    /// The base is fitted.
    Free,
    /// At the mean of the rows: what uniform coordinates of atoms that are on in every row make of it.
    Mean,
}

impl Atom {
    /// r.
    pub fn rank(&self) -> usize {
        self.decoder.len() / self.shape.basis()
    }

    /// Whether a row has an amplitude of its own.
    pub fn is_free(&self) -> bool {
        self.spread > 0.0 && self.shape.has_amplitude()
    }

    /// Unknowns of a row in which it is on.
    pub fn unknowns(&self) -> usize {
        self.shape.dim() + usize::from(self.is_free())
    }

    /// `y ← y + α·Bᵀφ`.
    pub fn add(&self, alpha: f64, phi: &[f64; LARGEST_BASIS], y: &mut [f64]) {
        for (phi, row) in phi.iter().zip(self.decoder.chunks_exact(y.len())) {
            let factor = alpha * phi;
            y.iter_mut().zip(row).for_each(|(y, b)| *y = factor.mul_add(*b, *y));
        }
    }
}

impl Dictionary {
    /// Decoder rows that are not the base: what a linear dictionary of the same size may have.
    pub fn decoder_rows(&self) -> usize {
        self.atoms.iter().map(|atom| atom.shape.basis()).sum()
    }

    /// The row that a code stands for, r numbers.
    pub fn decode(&self, code: &Code) -> Vec<f64> {
        let mut y = self.base.clone();
        for active in code {
            let atom = &self.atoms[active.atom];
            atom.add(active.amplitude, &atom.shape.jet(active.at).value, &mut y);
        }
        y
    }

    /// Numbers that a code holds: coordinates and free amplitudes, one at least for each active atom.
    pub fn coefficients(&self, code: &Code) -> usize {
        code.iter().map(|active| self.atoms[active.atom].unknowns().max(1)).sum()
    }
}
