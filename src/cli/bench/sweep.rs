use std::fmt::Write;

use lapidary::compress::batch::Step;
use lapidary::compress::sweep::{Point, Size, Varied};

use crate::cli::table::Table;

/// Side of one plot and the space around it.
const SIDE: f64 = 260.0;
const MARGIN: f64 = 52.0;

/// Steps that are drawn, and their colours; the others take little.
const DRAWN: [(Step, &str); 4] = [
    (Step::Spectrum, "#8a6d3b"),
    (Step::Gauge, "#35618e"),
    (Step::Scales, "#b5452c"),
    (Step::ColumnSearch, "#3c7d4f"),
];

/// A row a tensor: seconds of its steps beside what they count.
pub fn table(points: &[Point]) -> Table {
    let mut head = vec!["varied", "m", "n", "r"];
    head.extend(Step::ALL.map(Step::name));
    head.extend(["seconds", "GFLOP", "GB", "flips"]);
    let mut table = Table::new(&head);
    for point in points {
        let Size { m, n, rank } = point.size;
        let mut row = vec![point.varied.name().to_owned(), m.to_string(), n.to_string(), rank.to_string()];
        row.extend(Step::ALL.map(|step| format!("{:.3}", point.seconds(step))));
        row.push(format!("{:.3}", point.total()));
        row.extend([format!("{:.0}", point.flop * 1e-9), format!("{:.0}", point.bytes * 1e-9)]);
        row.push(point.flips.to_string());
        table.row(row);
    }
    table
}

/// For each number that varies two plots, both axes logarithmic: seconds, and counts.
pub fn svg(points: &[Point]) -> String {
    let (width, height) = (2.0 * (SIDE + 2.0 * MARGIN), 3.0 * (SIDE + 2.0 * MARGIN));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"11\" role=\"img\" \
         aria-label=\"the encoder's time against m, n and r beside its counts\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (k, varied) in Varied::ALL.into_iter().enumerate() {
        let own: Vec<&Point> = points.iter().filter(|point| point.varied == varied).collect();
        let along = |of: &dyn Fn(&Point) -> f64| -> Vec<(f64, f64)> {
            own.iter().map(|point| (varied.of(point.size) as f64, of(point))).collect()
        };
        let mut seconds = vec![Series { name: "all", colour: "#222", points: along(&|point| point.total()) }];
        seconds.extend(DRAWN.map(|(step, colour)| Series {
            name: step.name(),
            colour,
            points: along(&|point| point.seconds(step)),
        }));
        let counts = [
            Series { name: "GFLOP", colour: "#35618e", points: along(&|point| point.flop * 1e-9) },
            Series { name: "GB", colour: "#b5452c", points: along(&|point| point.bytes * 1e-9) },
            Series {
                name: "1000 flips",
                colour: "#3c7d4f",
                points: along(&|point| point.flips as f64 * 1e-3),
            },
        ];
        let top = k as f64 * (SIDE + 2.0 * MARGIN) + MARGIN;
        let fixed = own.first().map_or(String::new(), |point| fixed(varied, point.size));
        plot(&mut svg, (MARGIN, top), &format!("seconds against {}, {fixed}", varied.name()), &seconds);
        let left = SIDE + 3.0 * MARGIN;
        plot(&mut svg, (left, top), &format!("counts against {}, {fixed}", varied.name()), &counts);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The two numbers that stay.
fn fixed(varied: Varied, size: Size) -> String {
    let others = Varied::ALL.into_iter().filter(|other| *other != varied);
    others.map(|other| format!("{} = {}", other.name(), other.of(size))).collect::<Vec<_>>().join(", ")
}

struct Series<'a> {
    name: &'a str,
    colour: &'a str,
    points: Vec<(f64, f64)>,
}

fn plot(svg: &mut String, (left, top): (f64, f64), title: &str, series: &[Series<'_>]) {
    let all = || series.iter().flat_map(|series| &series.points).filter(|(_, y)| *y > 0.0);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let ends =
            all().map(of).fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
        (ends.0.log2().floor(), ends.1.log2().ceil())
    };
    let ((x0, x1), (y0, y1)) = (range(|p| p.0), range(|p| p.1));
    let place = |(x, y): (f64, f64)| {
        let across = SIDE * (x.log2() - x0) / (x1 - x0).max(1.0);
        let up = SIDE * (y.log2() - y0) / (y1 - y0).max(1.0);
        (left + across, top + SIDE - up)
    };
    // Writing to a String cannot fail.
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"{:.1}\" font-weight=\"600\">{title}</text>", top - 10.0);
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#9aa3ad\"/>"
    );
    for x in series.first().map_or(&[][..], |series| &series.points[..]) {
        let (at, _) = place((x.0, 2f64.powf(y0)));
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            top + SIDE + 14.0,
            x.0
        );
    }
    for y in [y0, (0.5 * (y0 + y1)).round(), y1] {
        let (_, at) = place((2f64.powf(x0), 2f64.powf(y)));
        let label = number(2f64.powf(y));
        let _ =
            writeln!(svg, "<text x=\"{:.1}\" y=\"{at:.1}\" text-anchor=\"end\">{label}</text>", left - 4.0);
    }
    for Series { name, colour, points } in series {
        let drawn: Vec<_> = points.iter().filter(|(_, y)| *y > 0.0).map(|p| place(*p)).collect();
        let path: Vec<String> = drawn.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            path.join(" ")
        );
        if let Some((x, y)) = drawn.last() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
                x + 4.0,
                y + 3.0
            );
        }
    }
}

fn number(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapidary::compress::batch::Report;

    #[test]
    fn every_series_is_drawn_inside_of_its_plot() {
        let point = |varied: Varied, side: usize| {
            let mut size = Size { m: 2048, n: 2048, rank: 512 };
            match varied {
                Varied::M => size.m = side,
                Varied::N => size.n = side,
                Varied::Rank => size.rank = side,
            }
            let report = Report { seconds: [side as f64 * 1e-3; 8], ..Report::default() };
            Point { varied, size, report, flop: 1e9 * side as f64, bytes: 1e9, flips: side }
        };
        let points: Vec<_> = (Varied::ALL.into_iter())
            .flat_map(|varied| [1024, 2048, 4096].map(|side| point(varied, side)))
            .collect();
        let svg = svg(&points);
        assert_eq!(svg.matches("<polyline").count(), 3 * (5 + 3));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let corners = svg.lines().filter_map(|line| line.split("points=\"").nth(1)?.split('"').next());
        for (x, y) in corners.flat_map(|all| all.split(' ')).filter_map(|corner| corner.split_once(',')) {
            let [x, y] = [x, y].map(|number| number.parse::<f64>().unwrap());
            assert!((MARGIN..=3.0 * MARGIN + 2.0 * SIDE).contains(&x), "{x}");
            assert!((MARGIN..=5.0 * MARGIN + 3.0 * SIDE).contains(&y), "{y}");
        }
        assert_eq!(table(&points).to_string().lines().count(), 2 + points.len());
    }
}
