use std::fmt::Write;

use super::Shape;
use super::model::{Code, Dictionary};
use super::start::reach;

/// Side of a picture.
const SIDE: f64 = 420.0;
const MARGIN: f64 = 46.0;

/// Names on a picture beyond which only the means of the labels are written.
const MOST_NAMES: usize = 400;

/// What is drawn beside the atom.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels<'a> {
    /// A class for each row, and its name: tokens of one class share a colour.
    pub of_row: &'a [usize],
    pub names: &'a [String],
}

/// An atom as an SVG of its own plane: its curve (or a net of its surface) in the two directions in which it reaches
/// farthest, the rows in which it is on as they lie there once the other atoms are taken off, and the labels' names
/// at the means of their rows.
pub fn atom(dictionary: &Dictionary, codes: &[Code], x: &[f64], k: usize, labels: Labels<'_>) -> String {
    let plane = Plane::of(dictionary, k);
    let curves = plane.curves(dictionary, k);
    let points: Vec<(usize, [f64; 2])> = plane.rows(dictionary, codes, x, k);
    let corner = curves.iter().flatten().chain(points.iter().map(|(_, p)| p));
    let most = corner.fold(1e-9, |m: f64, p| m.max(p[0].abs()).max(p[1].abs()));
    let scale = (SIDE / 2.0 - MARGIN) / most;
    let place = |p: &[f64; 2]| [SIDE / 2.0 + scale * p[0], SIDE / 2.0 - scale * p[1]];
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIDE} {SIDE}\" width=\"{SIDE}\" height=\"{SIDE}\" \
         font-family=\"system-ui, sans-serif\" role=\"img\" aria-label=\"atom {k}\">\n\
         <rect width=\"{SIDE}\" height=\"{SIDE}\" fill=\"#fff\"/>\n"
    );
    for curve in &curves {
        let path: Vec<String> = curve.iter().map(&place).map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#9aa3ad\" stroke-width=\"1.5\"/>",
            path.join(" ")
        );
    }
    let classes = labels.names.len();
    for (row, p) in &points {
        let [x, y] = place(p);
        let class = labels.of_row.get(*row);
        let colour = class.map_or("#35618e".to_owned(), |class| colour(*class, classes));
        let title = class.and_then(|class| labels.names.get(*class)).map(|name| escaped(name));
        let title = title.map(|name| format!("<title>{name}</title>")).unwrap_or_default();
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\" fill-opacity=\"0.65\">{title}</circle>"
        );
    }
    if classes <= MOST_NAMES {
        names(&mut svg, &points, labels, &place);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Each label once, a little outside the mean of its rows.
fn names(
    svg: &mut String,
    points: &[(usize, [f64; 2])],
    labels: Labels<'_>,
    place: &dyn Fn(&[f64; 2]) -> [f64; 2],
) {
    for (class, name) in labels.names.iter().enumerate() {
        let mine: Vec<&[f64; 2]> = points
            .iter()
            .filter(|(row, _)| labels.of_row.get(*row) == Some(&class))
            .map(|(_, p)| p)
            .collect();
        if mine.is_empty() {
            continue;
        }
        let n = mine.len() as f64;
        let mean = [mine.iter().map(|p| p[0]).sum::<f64>() / n, mine.iter().map(|p| p[1]).sum::<f64>() / n];
        let [x, y] = place(&mean);
        let (dx, dy) = (x - SIDE / 2.0, y - SIDE / 2.0);
        let length = dx.hypot(dy).max(1.0);
        let (x, y) = (x + 20.0 * dx / length, y + 20.0 * dy / length);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"13\" font-weight=\"600\" text-anchor=\"middle\" \
             dominant-baseline=\"middle\" fill=\"{}\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>",
            colour(class, labels.names.len()),
            escaped(name)
        );
    }
}

/// Equal steps round the colour wheel.
pub fn colour(class: usize, classes: usize) -> String {
    format!("hsl({:.0},65%,38%)", 360.0 * class as f64 / classes.max(1) as f64)
}

/// A text inside HTML or SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The two directions in which an atom reaches farthest, around its centre.
struct Plane {
    axes: [Vec<f64>; 2],
    centre: Vec<f64>,
}

impl Plane {
    fn of(dictionary: &Dictionary, k: usize) -> Self {
        let atom = &dictionary.atoms[k];
        let rank = atom.rank();
        // A ray has no direction but its constant.
        let axes = reach(atom, 2, atom.shape == Shape::Ray, 0.0);
        let axis = |c: usize| match &axes {
            Some(axes) if c < axes.ncols() => (0..rank).map(|l| axes[(l, c)]).collect(),
            _ => vec![0.0; rank],
        };
        let centre = if atom.shape == Shape::Ray { vec![0.0; rank] } else { atom.decoder[..rank].to_vec() };
        Self { axes: [axis(0), axis(1)], centre }
    }

    fn place(&self, f: &[f64]) -> [f64; 2] {
        let along = |axis: &[f64]| axis.iter().zip(f).zip(&self.centre).map(|((a, f), c)| a * (f - c)).sum();
        [along(&self.axes[0]), along(&self.axes[1])]
    }

    fn curves(&self, dictionary: &Dictionary, k: usize) -> Vec<Vec<[f64; 2]>> {
        use std::f64::consts::{PI, TAU};
        let atom = &dictionary.atoms[k];
        let at = |t: [f64; 2]| {
            let mut f = vec![0.0; atom.rank()];
            atom.add(1.0, &atom.shape.jet(t).value, &mut f);
            self.place(&f)
        };
        let run = |steps: usize, t: &dyn Fn(f64) -> [f64; 2]| -> Vec<[f64; 2]> {
            (0..=steps).map(|i| at(t(i as f64 / steps as f64))).collect()
        };
        let net = |t: &dyn Fn(f64, f64) -> [f64; 2]| -> Vec<Vec<[f64; 2]>> {
            let fixed: Vec<f64> = (0..8).map(|i| f64::from(i) / 8.0).collect();
            let across = fixed.iter().map(|a| run(60, &|b| t(*a, b)));
            across.chain(fixed.iter().map(|b| run(60, &|a| t(a, *b)))).collect()
        };
        match atom.shape {
            Shape::Ray => vec![vec![[0.0; 2], at([0.0; 2])]],
            Shape::Line | Shape::Arc => vec![run(60, &|s| [5.0 * s - 2.5, 0.0])],
            Shape::Circle(_) => vec![run(120, &|s| [s, 0.0])],
            Shape::Torus => net(&|a, b| [a, b]),
            Shape::Sphere(_) => net(&|a, b| [PI * a, TAU * b]),
            Shape::Patch => net(&|a, b| [4.0 * a - 2.0, 4.0 * b - 2.0]),
        }
    }

    /// The rows in which the atom is on, without what the other atoms explain.
    fn rows(&self, dictionary: &Dictionary, codes: &[Code], x: &[f64], k: usize) -> Vec<(usize, [f64; 2])> {
        let y = dictionary.space.project(x);
        let rank = dictionary.space.rank;
        let lit = codes.iter().enumerate().filter(|(_, code)| code.iter().any(|active| active.atom == k));
        lit.map(|(i, code)| {
            let others: Code = code.iter().copied().filter(|active| active.atom != k).collect();
            let rest = dictionary.decode(&others);
            let own: Vec<f64> = y[i * rank..(i + 1) * rank].iter().zip(&rest).map(|(y, f)| y - f).collect();
            (i, self.place(&own))
        })
        .collect()
    }
}
