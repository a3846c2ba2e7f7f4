use std::f64::consts::TAU;

/// A width is at least this over √n of the unit in which a whitened coordinate varies: equal rows are no proof of a
/// width of nothing.
const LEAST_WIDTH: f64 = 1.0;

/// The density of a shell: `(1 − π)·N(z; c, s₀²I) + π·N(‖z − c‖; R, s₁²)/(A_m‖z − c‖^(m−1))`.
pub struct Density {
    pub centre: [f64; 3],
    pub radius: f64,
    pub share: f64,
    /// s₁ and s₀.
    pub widths: [f64; 2],
}

impl Density {
    /// A first guess from the coordinates of n rows.
    pub fn start(z: &[f64], n: usize, m: usize) -> Self {
        let mut radii: Vec<f64> = if m == 1 {
            z.to_vec()
        } else {
            z.chunks_exact(m).map(|z| z.iter().map(|v| v * v).sum::<f64>().sqrt()).collect()
        };
        radii.sort_by(f64::total_cmp);
        let upper = &radii[n / 2..];
        let radius = upper.iter().sum::<f64>() / upper.len() as f64;
        let mut centre = [0.0; 3];
        let mut radius = radius.max(0.3);
        if m == 1 {
            // Two clusters: the lower half is where the other one is.
            centre[0] = radii[..n / 2].iter().sum::<f64>() / (n / 2).max(1) as f64;
            radius -= centre[0];
        }
        Self { centre, radius, share: 0.6, widths: [0.4 * radius, 0.4 * radius] }
    }

    /// A shell around the origin, on in every row.
    pub fn even(z: &[f64], n: usize, m: usize) -> Self {
        let radii: Vec<f64> =
            z.chunks_exact(m).map(|z| z.iter().map(|v| v * v).sum::<f64>().sqrt()).collect();
        let radius = radii.iter().sum::<f64>() / n as f64;
        let width = (radii.iter().map(|d| (d - radius).powi(2)).sum::<f64>() / n as f64).sqrt();
        let width = width.max(LEAST_WIDTH / (n as f64).sqrt());
        Self { centre: [0.0; 3], radius, share: 1.0, widths: [width, 1.0] }
    }

    /// Log-densities of shell and cluster, with their shares.
    fn logs(&self, z: &[f64], m: usize) -> [f64; 2] {
        let mut square = 0.0;
        for (z, c) in z.iter().zip(&self.centre) {
            square += (z - c).powi(2);
        }
        let [s1, s0] = self.widths;
        let distance = if m == 1 { z[0] - self.centre[0] } else { square.sqrt() };
        let area = match m {
            1 => 1.0,
            2 => TAU * distance.max(1e-12),
            _ => 2.0 * TAU * (distance * distance).max(1e-24),
        };
        let shell = self.share.ln()
            - 0.5 * ((distance - self.radius) / s1).powi(2)
            - s1.ln()
            - 0.5 * TAU.ln()
            - area.ln();
        let cluster =
            (1.0 - self.share).ln() - 0.5 * square / (s0 * s0) - m as f64 * (s0.ln() + 0.5 * TAU.ln());
        [shell, cluster]
    }

    /// Probability that the atom is on, for each row.
    pub fn posterior(&self, z: &[f64], m: usize) -> Vec<f64> {
        z.chunks_exact(m)
            .map(|z| {
                let [shell, cluster] = self.logs(z, m);
                1.0 / (1.0 + (cluster - shell).exp())
            })
            .collect()
    }

    pub fn log_likelihood(&self, z: &[f64], m: usize) -> f64 {
        z.chunks_exact(m)
            .map(|z| {
                let [a, b] = self.logs(z, m);
                let top = a.max(b);
                top + ((a - top).exp() + (b - top).exp()).ln()
            })
            .sum()
    }

    /// The point of the shell that lies nearest.
    pub fn target(&self, z: &[f64], m: usize) -> [f64; 3] {
        let mut d = [0.0; 3];
        (0..m).for_each(|k| d[k] = z[k] - self.centre[k]);
        let length = if m == 1 { 1.0 } else { d.iter().map(|d| d * d).sum::<f64>().sqrt().max(1e-12) };
        if m == 1 {
            d[0] = 1.0;
        }
        std::array::from_fn(|k| self.centre[k] + self.radius * d[k] / length)
    }

    /// The density that posteriors ask for.
    pub fn update(&mut self, z: &[f64], on: &[f64], m: usize) {
        let n = on.len() as f64;
        let lit: f64 = on.iter().sum();
        let dark = n - lit;
        self.share = ((lit + 0.5) / (n + 1.0)).clamp(1e-6, 1.0 - 1e-6);
        let [s1, s0] = self.widths.map(|s| s.powi(-2));
        // The centre, from the cluster and from what the shell's points say of it.
        let mut centre = [0.0; 3];
        let mut weight = 0.0;
        for (z, on) in z.chunks_exact(m).zip(on) {
            let target = self.target(z, m);
            let (g, h) = (if m == 1 { 0.0 } else { on * s1 }, (1.0 - on) * s0);
            weight += g + h;
            for k in 0..m {
                centre[k] += g * (z[k] - target[k] + self.centre[k]) + h * z[k];
            }
        }
        if weight > 1e-9 {
            centre.iter_mut().for_each(|c| *c /= weight);
            self.centre = centre;
        }
        let (mut radius, mut cluster) = (0.0, 0.0);
        let distance = |z: &[f64], centre: &[f64; 3]| {
            if m == 1 {
                z[0] - centre[0]
            } else {
                (0..m).map(|k| (z[k] - centre[k]).powi(2)).sum::<f64>().sqrt()
            }
        };
        for (z, on) in z.chunks_exact(m).zip(on) {
            let d = distance(z, &self.centre);
            radius += on * d;
            cluster += (1.0 - on) * d * d;
        }
        if lit > 1e-6 {
            self.radius = radius / lit;
        }
        let width: f64 = z
            .chunks_exact(m)
            .zip(on)
            .map(|(z, on)| on * (distance(z, &self.centre) - self.radius).powi(2))
            .sum();
        let floor = |s: f64| s.max(LEAST_WIDTH / n.sqrt());
        self.widths = [
            floor((width / lit.max(1e-6)).sqrt()),
            floor(if dark > 1.0 { (cluster / (dark * m as f64)).sqrt() } else { self.widths[1] }),
        ];
    }
}
