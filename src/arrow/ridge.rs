use serde::Serialize;

/// What is added to the diagonal of H before it is factored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ridge {
    #[default]
    None,
    /// `H + diag(ρ_t I, ρ_β I)`.
    Absolute { row: f64, border: f64 },
    /// `H + ρ·|diag(H)|` (Marquardt): the step follows when unknowns change their scale. Entries below zero are raised
    /// as well; an entry of zero is not.
    Relative(f64),
}

impl Ridge {
    /// What is added to a diagonal entry `h` of a row block.
    pub fn on_row(self, h: f64) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Absolute { row, .. } => row,
            Self::Relative(rho) => rho * h.abs(),
        }
    }

    /// What is added to a diagonal entry `h` of the border.
    pub fn on_border(self, h: f64) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Absolute { border, .. } => border,
            Self::Relative(rho) => rho * h.abs(),
        }
    }

    /// Whether all its numbers are finite and none is below zero.
    pub fn is_valid(self) -> bool {
        let fine = |v: f64| v.is_finite() && v >= 0.0;
        match self {
            Self::None => true,
            Self::Absolute { row, border } => fine(row) && fine(border),
            Self::Relative(rho) => fine(rho),
        }
    }
}

impl std::fmt::Display for Ridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Absolute { row, border } => write!(f, "{row:e} on rows, {border:e} on the border"),
            Self::Relative(rho) => write!(f, "{rho:e} of the diagonal"),
        }
    }
}
