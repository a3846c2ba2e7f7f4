use faer::Mat;

/// One path of the packed form in the encoder's precision: `diag(h) U diag(l) Vᵀ diag(g)`.
#[derive(Clone, Debug)]
pub struct Path {
    /// m
    pub h: Vec<f64>,
    /// m x r, ±1
    pub u: Mat<f64>,
    /// r
    pub l: Vec<f64>,
    /// n x r, ±1
    pub v: Mat<f64>,
    /// n
    pub g: Vec<f64>,
}

impl Path {
    pub fn rank(&self) -> usize {
        self.l.len()
    }

    /// `diag(h) U` (m x r).
    pub fn hu(&self) -> Mat<f64> {
        Mat::from_fn(self.h.len(), self.rank(), |i, k| self.h[i] * self.u[(i, k)])
    }

    /// `U diag(l)` (m x r).
    pub fn ul(&self) -> Mat<f64> {
        Mat::from_fn(self.h.len(), self.rank(), |i, k| self.u[(i, k)] * self.l[k])
    }

    /// `Λ = diag(h) U diag(l)` (m x r).
    pub fn lambda(&self) -> Mat<f64> {
        Mat::from_fn(self.h.len(), self.rank(), |i, k| self.h[i] * self.u[(i, k)] * self.l[k])
    }

    /// `B = diag(g) V` (n x r).
    pub fn gv(&self) -> Mat<f64> {
        Mat::from_fn(self.g.len(), self.rank(), |j, k| self.g[j] * self.v[(j, k)])
    }

    /// The m x n matrix this path stands for.
    pub fn product(&self) -> Mat<f64> {
        self.lambda() * self.gv().transpose()
    }
}
