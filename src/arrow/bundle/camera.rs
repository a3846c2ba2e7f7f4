/// Numbers of a camera: rotation ω (3, axis times angle), translation (3), focal length f, distortion k₁, k₂.
pub const CAMERA: usize = 9;
/// Numbers of a point.
pub const POINT: usize = 3;

/// Where a camera sees a point, in pixels, and the derivatives of that.
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    pub pixel: [f64; 2],
    pub by_camera: [[f64; CAMERA]; 2],
    pub by_point: [[f64; POINT]; 2],
}

/// The camera model of the BAL data set:
///
/// ```text
///     P = R(ω)X + t     q = −(P_x, P_y)/P_z     pixel = f·(1 + k₁‖q‖² + k₂‖q‖⁴)·q
/// ```
///
/// R by Rodrigues' formula; `∂(R X)/∂ω = −[R X]ₓ·J_l(ω)` with the left Jacobian of SO(3),
/// `J_l = I + (1−cos θ)/θ²·[ω]ₓ + (θ−sin θ)/θ³·[ω]ₓ²` (Sola et al., arXiv:1812.01537, eq. 145).
///
/// # Panics
/// When the slices are shorter than 9 and 3.
pub fn project(camera: &[f64], point: &[f64]) -> Projection {
    let omega = [camera[0], camera[1], camera[2]];
    let x = [point[0], point[1], point[2]];
    let [a, b, c] = rotation_factors(omega);
    let skew = skew(omega);
    let squared = product(&skew, &skew);
    let combine = |first: f64, second: f64| {
        std::array::from_fn(|i| {
            std::array::from_fn(|j| f64::from(u8::from(i == j)) + first * skew[i][j] + second * squared[i][j])
        })
    };
    let rotation: Matrix = combine(a, b);
    let left_jacobian: Matrix = combine(b, c);
    let turned: [f64; 3] = std::array::from_fn(|i| (0..3).map(|j| rotation[i][j] * x[j]).sum());
    let by_omega = product(&self::skew(turned.map(|v| -v)), &left_jacobian);
    let seen: [f64; 3] = std::array::from_fn(|i| turned[i] + camera[3 + i]);

    let (f, k1, k2) = (camera[6], camera[7], camera[8]);
    let q = [-seen[0] / seen[2], -seen[1] / seen[2]];
    let n = q[0] * q[0] + q[1] * q[1];
    let distortion = 1.0 + n * (k1 + k2 * n);
    let slope = 2.0 * (k1 + 2.0 * k2 * n);

    let mut by_camera = [[0.0; CAMERA]; 2];
    let mut by_point = [[0.0; POINT]; 2];
    for k in 0..2 {
        // ∂pixel_k/∂q, then by the point in the camera's frame.
        let by_q: [f64; 2] =
            std::array::from_fn(|j| f * (f64::from(u8::from(j == k)) * distortion + slope * q[k] * q[j]));
        let z = -(by_q[0] * q[0] + by_q[1] * q[1]) / seen[2];
        let by_seen = [-by_q[0] / seen[2], -by_q[1] / seen[2], z];
        for j in 0..3 {
            by_camera[k][j] = (0..3).map(|i| by_seen[i] * by_omega[i][j]).sum();
            by_camera[k][3 + j] = by_seen[j];
            by_point[k][j] = (0..3).map(|i| by_seen[i] * rotation[i][j]).sum();
        }
        by_camera[k][6] = distortion * q[k];
        by_camera[k][7] = f * n * q[k];
        by_camera[k][8] = f * n * n * q[k];
    }
    Projection { pixel: q.map(|q| f * distortion * q), by_camera, by_point }
}

type Matrix = [[f64; 3]; 3];

/// `sin θ/θ`, `(1 − cos θ)/θ²`, `(θ − sin θ)/θ³`; near zero by their series, whose first neglected term (θ⁴/120 at
/// most) is below rounding there.
fn rotation_factors(omega: [f64; 3]) -> [f64; 3] {
    const SMALL: f64 = 1e-8;
    let squared: f64 = omega.iter().map(|w| w * w).sum();
    if squared < SMALL {
        return [1.0 - squared / 6.0, 0.5 - squared / 24.0, 1.0 / 6.0 - squared / 120.0];
    }
    let theta = squared.sqrt();
    let half = (0.5 * theta).sin();
    [theta.sin() / theta, 2.0 * half * half / squared, (theta - theta.sin()) / (theta * squared)]
}

fn skew(w: [f64; 3]) -> Matrix {
    [[0.0, -w[2], w[1]], [w[2], 0.0, -w[0]], [-w[1], w[0], 0.0]]
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    std::array::from_fn(|i| std::array::from_fn(|j| (0..3).map(|k| a[i][k] * b[k][j]).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_are_those_of_central_differences() {
        let point = [0.3, -0.7, 0.4];
        for omega in [[0.2, -0.4, 0.1], [1e-6, 2e-6, -1e-6], [0.0; 3], [1.4, 0.2, -2.0]] {
            let mut camera = [0.0, 0.0, 0.0, 0.1, 0.2, -4.0, 500.0, -0.1, 0.02];
            camera[..3].copy_from_slice(&omega);
            let exact = project(&camera, &point);
            for j in 0..CAMERA + POINT {
                let moved = |by: f64| {
                    let (mut camera, mut point) = (camera, point);
                    if j < CAMERA {
                        camera[j] += by
                    } else {
                        point[j - CAMERA] += by
                    }
                    project(&camera, &point).pixel
                };
                let h = 1e-5;
                let (up, down) = (moved(h), moved(-h));
                for k in 0..2 {
                    let difference = (up[k] - down[k]) / (2.0 * h);
                    let derivative =
                        if j < CAMERA { exact.by_camera[k][j] } else { exact.by_point[k][j - CAMERA] };
                    assert!(
                        (difference - derivative).abs() < 1e-6 * (1.0 + derivative.abs()),
                        "{omega:?} {j}"
                    );
                }
            }
        }
    }
}
