//! Where atoms are fewer than dimensions: the independent components of the whitened rows show them.
//!
//! Whitened, independent sources lie at right angles. A sparse source has a large fourth moment, so the directions of
//! largest fourth moment are those of single sources (symmetric FastICA, `W ← polar(E[z(Wᵀz)³] − 3W)`, Hyvärinen 1999).
//! Within the plane of a circle every direction is as good as any, and two at right angles are found; they are on together,
//! so their energies say which belong together (Hyvärinen and Hoyer 2000): `E[y²y'²] − 1` is far from 0.

use std::sync::Arc;

use faer::Mat;

use super::super::AtomsError;
use super::begin::from_rows;
use super::fit::State;
use super::plan::{Plan, Seeking};
use crate::device::arena::{Arena, View};
use crate::ops::gather::{Gather, Order, gather};
use crate::ops::gemm::{Gemm, gemm};
use crate::ops::polar_batch::{Polar, polar_batch};
use crate::ops::powers::{Powers, powers};
use crate::ops::principal::{Principal, principal};
use crate::ops::random::{Normal, random_normal};
use crate::ops::scale::{Scale, scale};
use crate::ops::splitmix::SplitMix64;

/// Steps of the fixed point after which its components are judged: a turn. Convergence is cubic near the end; what takes the
/// steps is the way there, the second direction of a circle's plane most of all.
const STEPS: usize = 60;

/// Turns at most.
const TURNS: usize = 12;

/// Turns without a new atom after which the directions that make none begin anew.
const IDLE_TURNS: usize = 2;

/// Dependence of two energies below which they are no pair: of independent ones it is 0, of a circle that is on with
/// probability q it is 1/(2q) − 1.
const DEPENDENT: f64 = 0.2;

/// Share of the variance along the first axis below which an axis is rounding.
const LEAST_VARIANCE: f64 = 1e-9;

/// Components that make the first atoms, with the length that each decoder row gets in the whitened frame.
#[derive(Default)]
struct Found {
    columns: Vec<usize>,
    lengths: Vec<f32>,
}

/// One fit that seeks.
struct Seeker {
    index: usize,
    plan: Arc<Plan>,
}

impl Seeker {
    fn room(&self) -> &Seeking {
        self.plan.seeking.as_ref().expect("only those with room seek")
    }
}

/// Decoders and bulks of the fits whose atoms are fewer than dimensions; atoms that no component shows begin at rows.
pub(super) fn seek(arena: &mut Arena, states: &mut [State<'_>]) -> Result<(), AtomsError> {
    let seekers: Vec<Seeker> = (states.iter().enumerate())
        .filter(|(_, state)| state.is_running() && state.plan.seeking.is_some())
        .map(|(index, state)| Seeker { index, plan: state.plan.clone() })
        .collect();
    if seekers.is_empty() {
        return Ok(());
    }
    whiten(arena, &seekers, states);
    let found = components(arena, &seekers)?;
    for (seeker, found) in seekers.iter().zip(&found) {
        states[seeker.index].paired = Some(found.columns.len() / seeker.plan.params.kind.rows());
        place(arena, seeker, found);
    }
    let items: Vec<Principal> = (seekers.iter().filter(|seeker| seeker.plan.params.bulk > 0))
        .map(|seeker| {
            let room = seeker.room();
            Principal { gram: room.energy, axes: seeker.plan.bulk, scratch: room.eigen }
        })
        .collect();
    principal(arena, &items)?;
    for (seeker, found) in seekers.iter().zip(&found) {
        let first = found.columns.len() / seeker.plan.params.kind.rows();
        from_rows(arena, &states[seeker.index], first);
    }
    Ok(())
}

/// Rows of variance 1 in every direction, and the vectors that scale there and back.
fn whiten(arena: &mut Arena, seekers: &[Seeker], states: &[State<'_>]) {
    let mut items = Vec::new();
    for seeker in seekers {
        let (room, values) = (seeker.room(), &states[seeker.index].frame.values);
        let least = LEAST_VARIANCE * values[0];
        let root = |value: &f64| if *value > least { value.sqrt() } else { 0.0 };
        let there: Vec<f32> =
            values.iter().map(|v| if *v > least { (1.0 / v.sqrt()) as f32 } else { 0.0 }).collect();
        let back: Vec<f32> = values.iter().map(|v| root(v) as f32).collect();
        arena.write(room.scale[0], &there);
        arena.write(room.scale[1], &back);
        let rows = seeker.plan.kept.part((0, 0), (room.z.rows, seeker.plan.rank));
        items.push(Scale::new(rows, room.z).cols(room.scale[0]));
    }
    scale(arena, &items);
}

/// What the components of each fit make; a fit rests as soon as that is all that it wants.
fn components(arena: &mut Arena, seekers: &[Seeker]) -> Result<Vec<Found>, AtomsError> {
    begin(arena, seekers);
    let mut found: Vec<Found> = seekers.iter().map(|_| Found::default()).collect();
    // The most that each found so far, and the turns since.
    let (mut most, mut idle) = (vec![0; seekers.len()], vec![0; seekers.len()]);
    for turn_number in 0..TURNS {
        let lacks = |k: &usize| {
            let params = &seekers[*k].plan.params;
            found[*k].columns.len() < params.atoms * params.kind.rows()
        };
        let open: Vec<usize> = (0..seekers.len()).filter(lacks).collect();
        if open.is_empty() {
            break;
        }
        turn(arena, &open.iter().map(|k| &seekers[*k]).collect::<Vec<_>>());
        let mut stuck = Vec::new();
        for k in open {
            found[k] = judge(arena, &seekers[k])?;
            idle[k] = if found[k].columns.len() > most[k] { 0 } else { idle[k] + 1 };
            most[k] = most[k].max(found[k].columns.len());
            if idle[k] == IDLE_TURNS {
                idle[k] = 0;
                stuck.push(k);
            }
        }
        let stuck: Vec<(&Seeker, &Found)> = stuck.into_iter().map(|k| (&seekers[k], &found[k])).collect();
        if turn_number + 1 < TURNS {
            begin_others(arena, &stuck, turn_number)?;
        }
    }
    Ok(found)
}

/// New random directions in the place of those that make no atom, at right angles to those that do.
fn begin_others(arena: &mut Arena, seekers: &[(&Seeker, &Found)], turn: usize) -> Result<(), AtomsError> {
    for (seeker, found) in seekers {
        let (room, r) = (seeker.room(), seeker.plan.rank);
        let directions = arena.read(room.w.at, r * r)?;
        let kept = Mat::from_fn(r, found.columns.len(), |i, k| directions[i * r + found.columns[k]]);
        let mut random = SplitMix64::new(seeker.plan.params.seed ^ ((turn as u64 + 1) << 32));
        let drawn = Mat::from_fn(r, r, |_, _| (random.uniform() - 0.5) as f32);
        let mut new = &drawn - &kept * (kept.transpose() * &drawn);
        for (k, column) in found.columns.iter().enumerate() {
            new.col_mut(*column).copy_from(kept.col(k));
        }
        let rows: Vec<f32> = (0..r * r).map(|k| new[(k / r, k % r)]).collect();
        arena.write(room.next.at, &rows);
        arena.write(room.flags, &[0.0; 3]);
    }
    polar_batch(arena, &seekers.iter().map(|(seeker, _)| polar_of(seeker.room())).collect::<Vec<_>>());
    Ok(())
}

fn polar_of(room: &Seeking) -> Polar {
    let (done, status) = (room.flags, room.flags + 1);
    Polar { a: room.next, x: room.w, y: room.polar[0], m: room.polar[1], done, status, parts: View::EMPTY }
}

/// Random directions at right angles.
fn begin(arena: &mut Arena, seekers: &[Seeker]) {
    seekers.iter().for_each(|seeker| arena.write(seeker.room().flags, &[0.0; 3]));
    let random = seekers.iter().map(|seeker| {
        let out = seeker.room().next;
        Normal { out, seed: seeker.plan.params.seed ^ 0x1ca_0000, first: 0, deviation: 1.0 }
    });
    random_normal(arena, &random.collect::<Vec<_>>());
    polar_batch(arena, &seekers.iter().map(|seeker| polar_of(seeker.room())).collect::<Vec<_>>());
}

/// Steps of the fixed point; W, its columns the directions, and the products of their energies afterwards.
fn turn(arena: &mut Arena, seekers: &[&Seeker]) {
    let rooms: Vec<&Seeking> = seekers.iter().map(|seeker| seeker.room()).collect();
    let gemms = |make: &dyn Fn(&Seeking) -> Gemm| rooms.iter().map(|r| make(r)).collect::<Vec<_>>();
    let scales = |make: &dyn Fn(&Seeking) -> Scale| rooms.iter().map(|r| make(r)).collect::<Vec<_>>();
    let polars: Vec<Polar> = rooms.iter().map(|room| polar_of(room)).collect();
    let along = gemms(&|room| Gemm::new(room.z, room.w, room.y));
    let power = |power| rooms.iter().map(|room| Powers { a: room.y, out: room.y, power }).collect::<Vec<_>>();
    let (cubes, squares) = (power(3), power(2));
    let copies = scales(&|room| Scale::new(room.w, room.next));
    let share = |room: &Seeking| 1.0 / room.z.rows as f32;
    let raised =
        gemms(&|room| Gemm::new(room.z, room.y, room.next).a_transposed().alpha(share(room)).beta(-3.0));
    let cleared =
        scales(&|room| Scale::new(View::vector(room.flags + 2, 1), View::vector(room.flags + 1, 1)));
    arena.repeat(STEPS, |arena| {
        gemm(arena, &along);
        powers(arena, &cubes);
        scale(arena, &copies);
        gemm(arena, &raised);
        scale(arena, &cleared);
        polar_batch(arena, &polars);
    });
    gemm(arena, &along);
    powers(arena, &squares);
    gemm(arena, &gemms(&|room| Gemm::new(room.y, room.y, room.energy).a_transposed().alpha(share(room))));
}

/// Which components make atoms: for circles the pairs whose energies depend most on each other, each the other's first
/// choice; for rays those of largest fourth moment.
fn judge(arena: &mut Arena, seeker: &Seeker) -> Result<Found, AtomsError> {
    let (r, atoms) = (seeker.plan.rank, seeker.plan.params.atoms);
    let energy = arena.read(seeker.room().energy.at, r * r)?;
    let at = |i: usize, j: usize| f64::from(energy[i * r + j]);
    if !energy.iter().all(|e| e.is_finite()) {
        return Ok(Found::default());
    }
    if !seeker.plan.is_circle() {
        let mut order: Vec<usize> = (0..r).collect();
        order.sort_by(|i, j| at(*j, *j).total_cmp(&at(*i, *i)).then(i.cmp(j)));
        order.truncate(atoms);
        let lengths = vec![1.0; order.len()];
        return Ok(Found { columns: order, lengths });
    }
    let dependence = |i: usize, j: usize| (at(i, j) - 1.0).abs();
    let first_choice =
        |i: usize| (0..r).filter(|j| *j != i).max_by(|a, b| dependence(i, *a).total_cmp(&dependence(i, *b)));
    let choices: Vec<Option<usize>> = (0..r).map(first_choice).collect();
    let mut pairs: Vec<(f64, usize, usize)> = (0..r)
        .filter_map(|i| {
            choices[i].filter(|j| i < *j && choices[*j] == Some(i)).map(|j| (dependence(i, j), i, j))
        })
        .filter(|(dependence, ..)| *dependence > DEPENDENT)
        .collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    pairs.truncate(atoms);
    // On a circle of radius R, on with probability q: E[y² + y'²] = qR² = 2 and E[(y² + y'²)²] = qR⁴.
    let radius =
        |(_, i, j): &(f64, usize, usize)| (0.5 * (at(*i, *i) + at(*j, *j) + 2.0 * at(*i, *j))).sqrt() as f32;
    Ok(Found {
        columns: pairs.iter().flat_map(|(_, i, j)| [*i, *j]).collect(),
        lengths: pairs.iter().flat_map(|pair| [radius(pair); 2]).collect(),
    })
}

/// The components found become decoders, `Λ^½·w·R`; the covariance of the others stands in `energy`, for the bulk.
fn place(arena: &mut Arena, seeker: &Seeker, found: &Found) {
    let (plan, room) = (&seeker.plan, seeker.room());
    let numbers = |columns: &[usize]| columns.iter().map(|c| *c as f32).collect::<Vec<f32>>();
    let columns = |count: usize, out: View| Gather {
        a: room.w,
        out: out.part((0, 0), (count, plan.rank)),
        rows: Some(room.index),
        cols: None,
        order: Order::Transposed,
    };
    let count = found.columns.len();
    if count > 0 {
        arena.write(room.index, &numbers(&found.columns));
        let out = plan.decoder.part((0, 0), (count, plan.rank));
        gather(arena, &[columns(count, out)]);
        arena.write(plan.squares, &found.lengths);
        scale(arena, &[Scale::new(out, out).cols(room.scale[1]).rows(plan.squares)]);
    }
    let others: Vec<usize> = (0..plan.rank).filter(|c| !found.columns.contains(c)).collect();
    if others.is_empty() || plan.params.bulk == 0 {
        return;
    }
    arena.write(room.index, &numbers(&others));
    let rest = room.next.part((0, 0), (others.len(), plan.rank));
    gather(arena, &[columns(others.len(), rest)]);
    scale(arena, &[Scale::new(rest, rest).cols(room.scale[1])]);
    gemm(arena, &[Gemm::new(rest, rest, room.energy).a_transposed()]);
}
