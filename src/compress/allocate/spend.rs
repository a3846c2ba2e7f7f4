use super::Response;

/// What each tensor gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// Bits a weight, in the order of the responses.
    pub bits: Vec<f64>,
    /// The sum of all responses before and after.
    pub expected: [f64; 2],
}

/// Bits a weight by which a tensor's budget grows at once.
const STEP: f64 = 0.02;

/// A tensor gets between this share of what it was asked for with and its inverse: responses are measured from 0.6 to 1.6
/// times that.
const LEAST: f64 = 0.5;

/// Spends what all tensors were asked for with, and not more: from the least budgets on, the next step always goes where
/// it lowers the sum of responses most for its bits. That is the optimum up to one step where responses are convex.
pub fn spend(responses: &[Response]) -> Spent {
    let cost = |response: &Response, bits: f64| bits * response.weights as f64;
    let total: f64 = responses.iter().map(|response| cost(response, response.asked)).sum();
    let mut bits: Vec<f64> = responses.iter().map(|response| rounded(response.asked * LEAST)).collect();
    let mut left = total - responses.iter().zip(&bits).map(|(r, bits)| cost(r, *bits)).sum::<f64>();
    let gain = |response: &Response, bits: f64| {
        (response.at(bits) - response.at(bits + STEP)) / cost(response, STEP)
    };
    let mut gains: Vec<f64> = responses.iter().zip(&bits).map(|(r, bits)| gain(r, *bits)).collect();
    loop {
        let fits = |k: &usize| {
            let response = &responses[*k];
            cost(response, STEP) <= left && bits[*k] + STEP <= response.asked / LEAST
        };
        // Of equals the first.
        let best = (0..responses.len()).filter(fits).rev().max_by(|a, b| gains[*a].total_cmp(&gains[*b]));
        let Some(best) = best.filter(|k| gains[*k] > 0.0) else { break };
        bits[best] = rounded(bits[best] + STEP);
        gains[best] = gain(&responses[best], bits[best]);
        left -= cost(&responses[best], STEP);
    }
    let before = responses.iter().map(|response| response.at(response.asked)).sum();
    let after = responses.iter().zip(&bits).map(|(response, bits)| response.at(*bits)).sum();
    Spent { bits, expected: [before, after] }
}

/// As a plan's file shows it.
fn rounded(bits: f64) -> f64 {
    (bits * 1e3).floor() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// error = size·2^(−slope·bits)
    fn response(weights: usize, size: f64, slope: f64) -> Response {
        let points = [0.6, 1.0, 1.6].map(|bits| [bits, size * (-slope * bits).exp2()]);
        Response { name: String::new(), weights, asked: 1.0, points: points.into() }
    }

    #[test]
    fn bits_go_where_the_response_is_steep() {
        let responses = [response(1000, 1.0, 2.0), response(1000, 0.1, 2.0), response(4000, 1.0, 2.0)];
        let spent = spend(&responses);
        let cost: f64 = responses.iter().zip(&spent.bits).map(|(r, bits)| r.weights as f64 * bits).sum();
        assert!((5880.0..=6000.0).contains(&cost), "{cost}");
        assert!(spent.bits[0] > spent.bits[2] && spent.bits[2] > spent.bits[1], "{:?}", spent.bits);
        assert!(spent.expected[1] < spent.expected[0]);
        // Where both may still move, errors for each weight fall equally fast: 2·Δbits = log2 of the ratio of sizes.
        let apart = spent.bits[0] - spent.bits[2];
        assert!((apart - 1.0).abs() < 0.1 || spent.bits[0] > 1.97, "{:?}", spent.bits);
    }

    #[test]
    fn a_flat_response_takes_nothing_and_bounds_hold() {
        let spent = spend(&[response(100, 1.0, 3.0), response(100, 1.0, 0.0)]);
        assert!(spent.bits[0] > 1.45 && spent.bits[0] <= 1.5, "{:?}", spent.bits);
        assert_eq!(spent.bits[1], 0.5);
        assert_eq!(spend(&[]), Spent { bits: Vec::new(), expected: [0.0; 2] });
    }

    #[test]
    fn equals_stay_as_they_were() {
        let spent = spend(&[response(100, 1.0, 2.0), response(100, 1.0, 2.0)]);
        assert!(spent.bits.iter().all(|bits| (bits - 1.0).abs() <= STEP + 1e-9), "{:?}", spent.bits);
    }
}
