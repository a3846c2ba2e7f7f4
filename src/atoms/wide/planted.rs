use super::super::AtomsError;
use super::source::Source;
use crate::device::Device;
use crate::device::arena::{Arena, Layout, View};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::random::{Normal, RandomCode, random_code, random_normal};
use crate::ops::round_atoms::{RoundAtoms, round_atoms};
use crate::ops::scale::{Scale, scale};
use crate::ops::sparse_rows::{SparseRows, sparse_rows};

use super::heldout::Codes;

/// Circles of radius 1 in random planes, `active` of them in a row at even phases, over a bulk of `bulk` random directions
/// with independent normal coefficients of variance ∝ 1/j, and isotropic noise. Any part of the rows can be made at any
/// time, on the device.
///
/// The circles have variance `active`; bulk and noise get their shares of the whole, `active/(1 − bulk_share − noise_share)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planted {
    pub rows: usize,
    /// p
    pub width: usize,
    /// Circles
    pub atoms: usize,
    pub active: usize,
    /// Directions of the bulk
    pub bulk: usize,
    pub bulk_share: f64,
    pub noise_share: f64,
    pub seed: u64,
}

impl Planted {
    /// Variance of a row.
    pub fn variance(&self) -> f64 {
        self.active as f64 / (1.0 - self.bulk_share - self.noise_share)
    }

    /// What rows `first..first + rows` are made of.
    ///
    /// # Errors
    /// No memory on the host.
    pub fn truth(&self, first: usize, rows: usize) -> Result<Codes, AtomsError> {
        let mut layout = Layout::default();
        let support = layout.matrix(rows, self.active);
        let values = layout.matrix(rows, 2 * self.active);
        let mut arena = Arena::new(&Device::Host, layout.most())?;
        random_code(&mut arena, &[self.codes(support, values, first)]);
        let (support, values) =
            (arena.read(support.at, support.len())?, arena.read(values.at, values.len())?);
        Ok(Codes { active: self.active, support: support.iter().map(|x| x.to_bits()).collect(), values })
    }

    fn codes(&self, support: View, values: View, first: usize) -> RandomCode {
        RandomCode { support, values, atoms: self.atoms, seed: self.seed_of(4), first }
    }

    /// Seeds of the parts lie far from each other.
    fn seed_of(&self, part: u64) -> u64 {
        (self.seed << 8 | part).wrapping_mul(0xd134_2543_de82_ef95)
    }

    fn room(&self, layout: &mut Layout, batch: usize) -> Room {
        Room {
            circles: layout.matrix(2 * self.atoms, self.width),
            bulk: layout.matrix(self.bulk, self.width),
            strengths: layout.vector(self.bulk),
            coefficients: layout.matrix(batch, self.bulk),
            support: layout.matrix(batch, self.active),
            values: layout.matrix(batch, 2 * self.active),
        }
    }
}

struct Room {
    circles: View,
    bulk: View,
    strengths: usize,
    coefficients: View,
    support: View,
    values: View,
}

impl Source for Planted {
    fn rows(&self) -> usize {
        self.rows
    }

    fn width(&self) -> usize {
        self.width
    }

    fn place(&self, layout: &mut Layout, batch: usize) {
        self.room(layout, batch);
    }

    fn prepare(&self, arena: &mut Arena, at: usize, batch: usize) {
        let room = self.room(&mut Layout::behind(at), batch);
        let fill = |out, part| Normal { out, seed: self.seed_of(part), first: 0, deviation: 1.0 };
        random_normal(arena, &[fill(room.circles, 1), fill(room.bulk, 2)]);
        let form = |decoder, rows_an_atom| RoundAtoms { decoder, rows_an_atom };
        // Of length 1 first, so that the pair's mean singular value is 1 to the square of their overlap.
        round_atoms(arena, &[form(room.circles, 1), form(room.bulk, 1)]);
        round_atoms(arena, &[form(room.circles, 2)]);
        let harmonic: f64 = (1..=self.bulk).map(|j| 1.0 / j as f64).sum();
        let variance = self.bulk_share * self.variance() / harmonic;
        let strengths: Vec<f32> = (1..=self.bulk).map(|j| (variance / j as f64).sqrt() as f32).collect();
        arena.write(room.strengths, &strengths);
        scale(arena, &[Scale::new(room.bulk, room.bulk).rows(room.strengths)]);
    }

    fn load(
        &self,
        arena: &mut Arena,
        (at, batch): (usize, usize),
        first: usize,
        into: View,
    ) -> Result<(), AtomsError> {
        let room = self.room(&mut Layout::behind(at), batch);
        let rows = |view: View| view.part((0, 0), (into.rows, view.cols));
        let (coefficients, support, values) =
            (rows(room.coefficients), rows(room.support), rows(room.values));
        let deviation = (self.noise_share * self.variance() / self.width as f64).sqrt() as f32;
        let noise = Normal { out: into, seed: self.seed_of(3), first, deviation };
        let bulk = Normal { out: coefficients, seed: self.seed_of(5), first, deviation: 1.0 };
        random_normal(arena, &[noise, bulk]);
        if self.bulk > 0 {
            gemm(arena, &[Gemm::new(coefficients, room.bulk, into).beta(1.0)]);
        }
        random_code(arena, &[self.codes(support, values, first)]);
        let decoder = room.circles;
        sparse_rows(
            arena,
            &[SparseRows { support, values, decoder, base: Some(into), out: into, alpha: 1.0 }],
        );
        Ok(())
    }
}
