use std::time::Instant;

use faer::{Mat, Side};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::fit::{Ending, FitParams};
use super::refine::{Effort, Fitted, Work, refine, residual};
use super::search::{Shell, shells};
use super::signal::{Signal, complement};
use super::start::{Guess, moments, principal, reach, span, with};
use super::{AtomsError, Shape};

/// Rows that a direction needs: with fewer, some direction always looks shaped.
const ROWS_A_DIRECTION: usize = 25;

/// Standard deviations of the difference between two criteria within which they tie.
const BAND: f64 = 2.0;

/// Nats within which two criteria always tie.
const LEAST_BAND: f64 = 6.0;

/// Nats a row and direction beyond which a shell is so clear that nothing wider is tried.
const CLEAR: f64 = 0.7;

/// Share of its widest direction below which a surface does not reach into another.
const LEAST_REACH: f64 = 0.1;

/// How an atom came to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Birth {
    pub atom: usize,
    pub shape: Shape,
    /// Nats by which it explains its directions better than a normal distribution does, each direction's share of it.
    pub advantage: f64,
}

/// The births of one fit.
pub struct Race<'a> {
    pub y: &'a [f64],
    pub params: &'a FitParams,
    pub deadline: Option<Instant>,
    pub work: Work,
}

/// A candidate: a guess, the whitened directions that it takes, and its advantage over a normal distribution in them.
struct Runner {
    guess: Guess,
    w: Mat<f64>,
    gain: f64,
}

impl Runner {
    /// Nats a direction.
    fn advantage(&self) -> f64 {
        self.gain / self.w.ncols() as f64
    }
}

impl Race<'_> {
    /// Numbers that a fit has chosen.
    pub fn unknowns(&self, fitted: &Fitted) -> usize {
        let dictionary = &fitted.dictionary;
        let coordinates: usize =
            fitted.codes.iter().flatten().map(|active| dictionary.atoms[active.atom].unknowns()).sum();
        coordinates + dictionary.space.rank * (1 + dictionary.decoder_rows())
    }

    /// Directions that the rows still have to give: the atoms so far took theirs.
    pub fn directions_left(&self, fitted: &Fitted) -> usize {
        let taken: usize = fitted.dictionary.atoms.iter().map(|atom| atom.shape.directions()).sum();
        (fitted.codes.len() / ROWS_A_DIRECTION).max(1).saturating_sub(taken)
    }

    /// One round of births: shapes in directions that no longer overlap once whitened are independent, and are born
    /// together. The fit with them, or why there is none.
    pub fn run(
        &mut self,
        fitted: &Fitted,
        round: u64,
    ) -> Result<Result<(Fitted, Vec<Birth>), Ending>, AtomsError> {
        let rank = fitted.dictionary.space.rank;
        let e = residual(self.y, &fitted.dictionary, &fitted.codes);
        let known = (!fitted.dictionary.atoms.is_empty()).then_some(fitted.dictionary.noise);
        let Some(mut signal) =
            Signal::of(&e, rank, known, self.directions_left(fitted)).filter(|signal| signal.dim > 0)
        else {
            return Ok(Err(Ending::NothingLeft));
        };
        let seed = self.params.seed.wrapping_add(round.wrapping_mul(0x9e37_79b9));
        let first = fitted.dictionary.atoms.len();
        let (mut guesses, mut births) = (Vec::new(), Vec::new());
        while signal.dim > 0 && first + guesses.len() < self.params.atoms {
            let Some(winner) = self.winner(fitted, &e, &signal, seed)? else { break };
            let (atom, shape) = (first + guesses.len(), winner.guess.shape);
            births.push(Birth { atom, shape, advantage: winner.advantage() });
            guesses.push(winner.guess);
            match signal.without(&winner.w) {
                Some(rest) => signal = rest,
                None => break,
            }
        }
        // What is left is normal as far as this can tell: lines, so that it is no noise to the others.
        for guess in self.plain(&e, rank, &signal) {
            if first + guesses.len() < self.params.atoms {
                births.push(Birth { atom: first + guesses.len(), shape: guess.shape, advantage: 0.0 });
                guesses.push(guess);
            }
        }
        let (dictionary, codes) = with(fitted, &guesses);
        let born = refine(self.y, dictionary, codes, self.effort())?;
        self.work += born.work;
        let pays = !guesses.is_empty() && born.criterion() < fitted.criterion() - LEAST_BAND;
        Ok(if pays { Ok((born, births)) } else { Err(Ending::NoGain) })
    }

    fn may(&self, shape: Shape) -> bool {
        self.params.shapes.iter().any(|allowed| allowed.name() == shape.name())
    }

    fn effort(&self) -> Effort {
        Effort { rounds: 5, tries: 12, settled: 1e-3, deadline: self.deadline }
    }

    /// The shape with the largest advantage a direction.
    fn winner(
        &self,
        fitted: &Fitted,
        e: &[f64],
        signal: &Signal,
        seed: u64,
    ) -> Result<Option<Runner>, AtomsError> {
        let found = |shape, m| if self.may(shape) { shells(signal, m, seed, 1) } else { Vec::new() };
        let mut runners: Vec<Runner> = Vec::new();
        let runner = |guess, shell: &Shell| Runner { guess, w: shell.w.clone(), gain: shell.gain };
        for ray in &found(Shape::Ray, 1) {
            let single = runner(Guess::ray(ray), ray);
            let bends = single.guess.shape == Shape::Ray && self.may(Shape::Line);
            let sides = [ray.clone(), ray.turned(ray.width)];
            let lines = sides.iter().filter(|_| bends).filter_map(|ray| gated_line(signal, ray, single.gain));
            let line = lines.max_by(|a, b| a.gain.total_cmp(&b.gain));
            runners.push(line.unwrap_or(single));
        }
        for ring in &found(Shape::Circle(1), 2) {
            // In its own plane it must beat rays along two directions; then it also stands for each of them.
            let within = signal.within(&ring.w);
            let straight = if self.may(Shape::Ray) { rays_within(&within, seed) } else { 0.0 };
            if ring.gain > straight.max(0.0) {
                let apart = |ray: &Runner| {
                    (ring.w.transpose() * &ray.w).norm_l2().powi(2) < 0.5 * ray.w.ncols() as f64
                };
                runners.retain(|ray| ray.guess.shape != Shape::Ray || apart(ray));
                runners.push(runner(Guess::circle(ring), ring));
            }
        }
        let balls = found(Shape::Sphere(1), 3);
        runners.extend(balls.iter().map(|ball| runner(Guess::sphere(ball), ball)));
        let best = runners.iter().map(Runner::advantage).fold(0.0, f64::max);
        if signal.dim >= 3 && best < CLEAR * signal.rows as f64 {
            runners.extend(self.surfaces(fitted, e, signal, balls.first())?);
        }
        let winner = runners.into_iter().max_by(|a, b| a.advantage().total_cmp(&b.advantage()));
        Ok(winner.filter(|winner| winner.gain > LEAST_BAND))
    }

    /// Tori, which have no density of their own in the search: fitted, beside lines for all other directions, and held
    /// against lines for all directions.
    fn surfaces(
        &self,
        fitted: &Fitted,
        e: &[f64],
        signal: &Signal,
        ball: Option<&Shell>,
    ) -> Result<Option<Runner>, AtomsError> {
        if !self.may(Shape::Torus) {
            return Ok(None);
        }
        let rank = fitted.dictionary.space.rank;
        let w = match ball {
            Some(ball) => ball.w.clone(),
            None => Mat::identity(signal.dim, 3),
        };
        let Some(rest) = signal.without(&w) else { return Ok(None) };
        let inside = |w: &Mat<f64>, signal: &Signal| principal(e, rank, &span(signal, w)?);
        let Some(axes) = inside(&w, signal) else { return Ok(None) };
        let line = |axes: &Mat<f64>, k: usize| {
            Guess::everywhere(Shape::Line, e, rank, &axes.subcols(k, 1).to_owned())
        };
        let mut background = Vec::new();
        if rest.dim > 0 {
            let Some(others) = inside(&Mat::identity(rest.dim, rest.dim), &rest) else { return Ok(None) };
            background.extend((0..rest.dim).filter_map(|k| line(&others, k)));
        }
        let teams: Vec<Vec<Guess>> = Guess::tori(e, rank, &axes)
            .into_iter()
            .filter(covers)
            .map(|torus| std::iter::once(torus).chain(background.iter().cloned()).collect())
            .collect();
        let compete = |team: &Vec<Guess>| {
            let (dictionary, codes) = with(fitted, team);
            refine(self.y, dictionary, codes, self.effort())
        };
        let fits = teams.par_iter().map(compete).collect::<Vec<_>>();
        let fits = fits.into_iter().collect::<Result<Vec<_>, _>>()?;
        let best = (0..fits.len()).min_by(|a, b| fits[*a].criterion().total_cmp(&fits[*b].criterion()));
        let Some(best) = best else { return Ok(None) };
        // Its nine functions may reach farther than the three directions it began in: so may the lines.
        let torus = &fits[best].dictionary.atoms[fitted.dictionary.atoms.len()];
        let Some(reached) = reach(torus, 8, false, LEAST_REACH) else { return Ok(None) };
        let Some(reached) = principal(e, rank, &reached) else { return Ok(None) };
        let m = reached.ncols();
        let rival: Vec<Guess> =
            (0..m).filter_map(|k| line(&reached, k)).chain(background.iter().cloned()).collect();
        let (gain, band) = lead(&fits[best], &compete(&rival)?);
        let gain = gain * 3.0 / m as f64;
        Ok((gain > band).then(|| Runner { guess: teams[best][0].clone(), w, gain }))
    }

    /// Lines through everything, one along each principal direction of what is left.
    fn plain(&self, e: &[f64], rank: usize, left: &Signal) -> Vec<Guess> {
        if !self.may(Shape::Line) || left.dim == 0 {
            return Vec::new();
        }
        let axes = span(left, &Mat::identity(left.dim, left.dim)).and_then(|axes| principal(e, rank, &axes));
        let line =
            |axes: &Mat<f64>, k| Guess::everywhere(Shape::Line, e, rank, &axes.subcols(k, 1).to_owned());
        axes.iter()
            .flat_map(|axes| (0..axes.ncols()).filter_map(|k| line(axes, k)).collect::<Vec<_>>())
            .collect()
    }
}

/// What rays along orthogonal directions gain together.
fn rays_within(signal: &Signal, seed: u64) -> f64 {
    let Some(ray) = shells(signal, 1, seed, 1).pop().filter(|ray| ray.gain > 0.0) else { return 0.0 };
    ray.gain
        + signal.without(&ray.w).map_or(0.0, |rest| if rest.dim > 0 { rays_within(&rest, seed) } else { 0.0 })
}

/// Whether rows lie all over a torus: a few places on it are no surface.
fn covers(torus: &Guess) -> bool {
    let mut taken = [false; 64];
    for (t, _) in torus.at.iter().flatten() {
        let cell = |t: f64| ((8.0 * t) as usize).min(7);
        taken[8 * cell(t[0]) + cell(t[1])] = true;
    }
    4 * taken.iter().filter(|taken| **taken).count() > 3 * 64
}

/// A ray is a line where a further direction varies in the rows in which it is on, and only there.
fn gated_line(signal: &Signal, ray: &Shell, single: f64) -> Option<Runner> {
    let rest = signal.without(&ray.w)?;
    let q = rest.dim;
    let lit: Vec<usize> = (0..signal.rows).filter(|i| ray.on[*i] > 0.5).collect();
    let dark: Vec<usize> = (0..signal.rows).filter(|i| ray.on[*i] <= 0.5).collect();
    if q == 0 || lit.len() < q + 3 || dark.len() < q + 3 {
        return None;
    }
    let covariance = |chosen: &[usize]| {
        let mean: Vec<f64> = (0..q).map(|k| moments(&column(&rest, chosen, k)).0).collect();
        let mut c = Mat::<f64>::zeros(q, q);
        for i in chosen {
            for k in 0..q {
                for l in 0..q {
                    let (a, b) = (rest.white[i * q + k] - mean[k], rest.white[i * q + l] - mean[l]);
                    c[(k, l)] += a * b / chosen.len() as f64;
                }
            }
        }
        c
    };
    // Largest variance when on against that when off.
    let l = covariance(&dark);
    let l = Mat::from_fn(q, q, |i, j| l[(i, j)] + if i == j { 1e-9 } else { 0.0 });
    let root = l.llt(Side::Lower).ok()?;
    use faer::linalg::solvers::Solve;
    let whitened = {
        let half = root.L().to_owned();
        let inverse = half.partial_piv_lu().solve(Mat::<f64>::identity(q, q));
        &inverse * covariance(&lit) * inverse.transpose()
    };
    let eigen = whitened.self_adjoint_eigen(Side::Lower).ok()?;
    let half = root.L().to_owned();
    let top = Mat::from_fn(q, 1, |i, _| eigen.U()[(i, q - 1)]);
    let direction = half.transpose().partial_piv_lu().solve(&top);
    let length = direction.norm_l2();
    let direction = &direction * faer::Scale(1.0 / length);
    let along = rest.on(&direction);
    let pick = |chosen: &[usize]| chosen.iter().map(|i| along[*i]).collect::<Vec<f64>>();
    let (bright, dim) = (moments(&pick(&lit)).1, moments(&pick(&dark)).1);
    // Two normal distributions against one of variance 1.
    let gain = -(lit.len() as f64 * bright.ln() + dark.len() as f64 * dim.ln())
        - 0.5 * (signal.rows as f64).ln() * (q as f64 + 3.0);
    // Back among all whitened directions.
    let back = complement(&ray.w)?;
    let second = &back * &direction;
    let w = Mat::from_fn(signal.dim, 2, |i, k| if k == 0 { ray.w[(i, 0)] } else { second[(i, 0)] });
    let enough = gain > LEAST_BAND + 0.05 * signal.rows as f64;
    enough.then(|| Runner { guess: Guess::line(ray, &along), w, gain: single + gain })
}

fn column(signal: &Signal, chosen: &[usize], k: usize) -> Vec<f64> {
    chosen.iter().map(|i| signal.white[i * signal.dim + k]).collect()
}

/// Nats by which a fit leads another, and those within which they tie: the spread of the sum of the rows' differences.
pub fn lead(fitted: &Fitted, rival: &Fitted) -> (f64, f64) {
    let n = fitted.costs.len() as f64;
    let differences: Vec<f64> = fitted.costs.iter().zip(&rival.costs).map(|(a, b)| b - a).collect();
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / n;
    (rival.criterion() - fitted.criterion(), (BAND * (variance * n).sqrt()).max(LEAST_BAND))
}
