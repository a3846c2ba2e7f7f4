use super::payload::Payload;

/// How many bits a tensor may spend, and what the rank rule made of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Bits per weight asked for.
    pub bits: f64,
    /// Multiplier of the budget for this tensor (the K/V factor of grouped-query models).
    pub factor: f64,
}

/// Whether the budget decided the rank, or one of its bounds did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clipped {
    /// The budget decided.
    No,
    /// The smallest rank, 8, costs more than the budget.
    Floor,
    /// The rank may not pass the smaller side of the matrix.
    Cap,
}

/// A rank and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub rank: usize,
    pub clipped: Clipped,
    /// Bits of the payload without its 16-byte header.
    pub bits: u64,
}

/// The smallest rank of the payload format, and the step between ranks.
pub const RANK_STEP: usize = 8;

/// The rank of an m x n tensor for a budget.
///
/// `r = floor8( factor·(b·m·n − 16P(m+n)) / (P(m+n+16)) )`, clipped to `[8, floor8(min(m,n))]`; floor8 rounds down to
/// a multiple of 8. `None` where min(m, n) < 8: no payload can hold such a tensor.
pub fn rank_for(m: usize, n: usize, paths: usize, budget: Budget) -> Option<Rank> {
    let cap = m.min(n) / RANK_STEP * RANK_STEP;
    if cap == 0 {
        return None;
    }
    let (mf, nf, p) = (m as f64, n as f64, paths as f64);
    let wanted = budget.factor * (budget.bits * mf * nf - 16.0 * p * (mf + nf)) / (p * (mf + nf + 16.0));
    let steps = (wanted / RANK_STEP as f64).floor() * RANK_STEP as f64;
    let (rank, clipped) = match steps {
        s if s < RANK_STEP as f64 => (RANK_STEP, Clipped::Floor),
        s if s > cap as f64 => (cap, Clipped::Cap),
        s => (s as usize, Clipped::No),
    };
    Some(Rank { rank, clipped, bits: payload_bits(m, n, paths, rank) })
}

/// `P·[r(m+n) + 16(m+n) + 16r]`; the 16-byte header is not counted.
pub fn payload_bits(m: usize, n: usize, paths: usize, rank: usize) -> u64 {
    (paths * (rank * (m + n) + 16 * (m + n) + 16 * rank)) as u64
}

impl Payload {
    /// What this payload costs, as [`payload_bits`] counts.
    pub fn bits(&self) -> u64 {
        payload_bits(self.rows(), self.cols(), self.shape().paths, self.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bits: f64) -> Budget {
        Budget { bits, factor: 1.0 }
    }

    #[test]
    fn anchors_of_the_rule() {
        let cases = [
            (4096, 4096, 0.55, 2, 544),
            (4096, 11008, 0.10, 2, 128),
            (2048, 1024, 1.0, 2, 320),
            (1024, 1024, 1.0, 2, 232),
            (1024, 3072, 0.55, 2, 192),
            (1536, 576, 1.0, 2, 192),
            (1536, 576, 1.0, 1, 392),
            (576, 576, 1.0, 2, 120),
            (576, 576, 1.0, 1, 264),
            (192, 576, 1.0, 1, 120),
            (192, 576, 1.0, 2, 48),
        ];
        for (m, n, bits, paths, rank) in cases {
            let got = rank_for(m, n, paths, plain(bits)).unwrap();
            assert_eq!((got.rank, got.clipped), (rank, Clipped::No), "{m}x{n} at {bits} bits, {paths} paths");
            assert!(got.bits as f64 <= bits * (m * n) as f64);
        }
    }

    #[test]
    fn bounds_are_said() {
        assert_eq!(rank_for(64, 64, 2, plain(0.1)).unwrap().clipped, Clipped::Floor);
        assert_eq!(
            rank_for(64, 60, 1, plain(9.0)).unwrap(),
            Rank { rank: 56, clipped: Clipped::Cap, bits: 56 * 124 + 16 * 124 + 16 * 56 }
        );
        assert_eq!(rank_for(7, 4096, 1, plain(1.0)), None);
        let doubled = rank_for(192, 576, 1, Budget { bits: 1.0, factor: 2.0 }).unwrap();
        assert_eq!((doubled.rank, doubled.clipped), (192, Clipped::Cap));
    }
}
