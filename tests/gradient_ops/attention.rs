//! Attention: its gradient, and its kernels on tensor cores.

use super::*;

/// A window of attention, with what it is made from.
struct Case {
    heads: Heads,
    mask: Mask,
    rows: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dout: Vec<f64>,
}

impl Case {
    /// The output of query `t` of a head.
    fn output(&self, t: usize, head: usize, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
        let (dim, width, kv_width) = (self.heads.head_dim, self.heads.width(), self.heads.kv_width());
        let kv = head / (self.heads.heads / self.heads.kv_heads) * dim;
        let reach = match self.mask {
            Mask::Causal => self.rows,
            Mask::Sliding { window } => window,
        };
        let keys = (t + 1).saturating_sub(reach)..t + 1;
        let query = &q[t * width + head * dim..][..dim];
        let weights: Vec<f64> = (keys.clone())
            .map(|s| (dot(query, &k[s * kv_width + kv..][..dim]) / (dim as f64).sqrt()).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        let value = |j: usize| {
            let terms = keys.clone().zip(&weights).map(|(s, w)| w * v[s * kv_width + kv + j]);
            terms.sum::<f64>() / total
        };
        (0..dim).map(value).collect()
    }

    /// The part of the loss `Σ dout∘out` that depends on one row of q, k or v, of some query heads.
    fn loss(&self, parts: [&[f64]; 3], queries: std::ops::Range<usize>, heads: &[usize]) -> f64 {
        let (dim, width) = (self.heads.head_dim, self.heads.width());
        let term = |t: usize, head: usize| {
            dot(&self.output(t, head, parts), &self.dout[t * width + head * dim..][..dim])
        };
        queries.flat_map(|t| heads.iter().map(move |head| term(t, *head))).sum()
    }

    /// The derivative by number `index` of part 0 (q), 1 (k) or 2 (v).
    fn difference(&self, part: usize, index: usize) -> f64 {
        let parts = [&self.q[..], &self.k, &self.v];
        let width = if part == 0 { self.heads.width() } else { self.heads.kv_width() };
        let (row, head, share) =
            (index / width, index % width / self.heads.head_dim, self.heads.heads / self.heads.kv_heads);
        let (queries, heads) = match part {
            0 => (row..row + 1, vec![head]),
            _ => (row..self.rows, (head * share..(head + 1) * share).collect()),
        };
        difference(parts[part], index, |moved| {
            let mut parts = parts;
            parts[part] = moved;
            self.loss(parts, queries.clone(), &heads)
        })
    }
}

#[test]
fn attention_passes_gradients_back() {
    let cases = [
        (Heads { heads: 4, kv_heads: 2, head_dim: 8 }, Mask::Causal, 1),
        (Heads { heads: 4, kv_heads: 2, head_dim: 8 }, Mask::Causal, 70),
        (Heads { heads: 4, kv_heads: 2, head_dim: 10 }, Mask::Sliding { window: 9 }, 131),
        (Heads { heads: 3, kv_heads: 1, head_dim: 64 }, Mask::Causal, 150),
        (Heads { heads: 2, kv_heads: 2, head_dim: 126 }, Mask::Causal, 65),
        (Heads { heads: 2, kv_heads: 1, head_dim: 250 }, Mask::Sliding { window: 70 }, 130),
    ];
    on_every_device(|sheet| {
        for (heads, mask, rows) in cases {
            // Two windows in one table, rows further apart than they are long.
            let cases: Vec<_> =
                (0..2).map(|_| attention_case(sheet, (heads, mask, rows), Rows::Apart)).collect();
            let items: Vec<AttentionGradient> = cases.iter().map(|case| case.1).collect();
            let forward: Vec<KeptAttention> = items.iter().map(|item| item.forward).collect();
            attention_kept(&mut sheet.arena, (heads, mask), &forward, Precision::F32);
            attention_backward(&mut sheet.arena, (heads, mask), &items, Precision::F32);
            for (case, item) in &cases {
                let what = format!("{rows} rows, {heads:?}, {mask:?}");
                let parts = [&case.q[..], &case.k, &case.v];
                let outputs: Vec<f64> = (0..rows)
                    .flat_map(|t| (0..heads.heads).flat_map(move |h| case.output(t, h, parts)))
                    .collect();
                assert_close(&what, &sheet.read(item.forward.out), &outputs, TOLERANCE);
                for (part, view) in [item.dq, item.dk, item.dv].into_iter().enumerate() {
                    let found = sheet.read(view);
                    assert!(found.iter().all(|x| x.is_finite()), "{what}: all of gradient {part} is written");
                    for index in (0..found.len()).step_by(found.len() / 60 + 1) {
                        let expected = case.difference(part, index);
                        let name = format!("{what}, gradient {part}, number {index}");
                        assert_close(&name, &found[index..][..1], &[expected], ATTENTION_GRADIENT_TOLERANCE);
                    }
                }
            }
        }
    });
}

#[test]
fn attention_on_tensor_cores_stays_close() {
    let cases = [
        (Heads { heads: 4, kv_heads: 2, head_dim: 8 }, Mask::Causal, 1),
        (Heads { heads: 4, kv_heads: 2, head_dim: 10 }, Mask::Sliding { window: 9 }, 131),
        (Heads { heads: 9, kv_heads: 3, head_dim: 64 }, Mask::Causal, 150),
        (Heads { heads: 2, kv_heads: 1, head_dim: 64 }, Mask::Causal, 2048),
        (Heads { heads: 2, kv_heads: 2, head_dim: 126 }, Mask::Causal, 65),
        (Heads { heads: 4, kv_heads: 1, head_dim: 128 }, Mask::Sliding { window: 70 }, 300),
        (Heads { heads: 2, kv_heads: 1, head_dim: 250 }, Mask::Causal, 130),
        // Rows that copies of 16 bytes take.
        (Heads { heads: 1, kv_heads: 1, head_dim: 253 }, Mask::Causal, 200),
        (Heads { heads: 3, kv_heads: 1, head_dim: 160 }, Mask::Sliding { window: 9 }, 67),
        (Heads { heads: 2, kv_heads: 1, head_dim: 256 }, Mask::Sliding { window: 512 }, 600),
    ];
    // Apart, and as a model's activations lie: all four numbers of a copy belong to one row.
    let close = [
        (Heads { heads: 9, kv_heads: 3, head_dim: 64 }, Mask::Causal, 150),
        (Heads { heads: 4, kv_heads: 2, head_dim: 128 }, Mask::Sliding { window: 70 }, 131),
        (Heads { heads: 4, kv_heads: 1, head_dim: 256 }, Mask::Causal, 200),
    ];
    let apart = cases.map(|case| (case, Rows::Apart)).into_iter();
    let cases: Vec<_> = apart.chain(close.map(|case| (case, Rows::Close))).collect();
    for device in common::tuning_devices() {
        for (shape, lie) in cases.iter().copied() {
            let expected = attention_numbers(&Device::Host, (shape, lie), Precision::F32);
            let found = attention_numbers(&device, (shape, lie), Precision::Tf32);
            let mut worst = [0.0f64; 5];
            for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{shape:?}, part {part} of out, log sums, dq, dk, dv");
                assert_close(&what, found, &wide(expected), ATTENTION_TF32_TOLERANCE);
                for (x, y) in found.iter().zip(expected) {
                    worst[part] = worst[part].max(f64::from((x - y).abs() / y.abs().max(1.0)));
                }
            }
            let worst = worst.map(|x| format!("{x:.1e}")).join(" ");
            println!("{}, {shape:?}: {worst} at most off", device.name());
            let bits =
                |parts: Vec<Vec<f32>>| parts.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let again = attention_numbers(&device, (shape, lie), Precision::Tf32);
            assert!(bits(found) == bits(again), "{shape:?}: the same bytes again");
        }
    }
}

/// The output, the sums' logarithms and the gradients of one window, the same window at every call.
fn attention_numbers(
    device: &Device,
    (shape, lie): ((Heads, Mask, usize), Rows),
    precision: Precision,
) -> Vec<Vec<f32>> {
    let mut sheet = Sheet::new(device);
    let (_, item) = attention_case(&mut sheet, shape, lie);
    let (heads, mask, rows) = shape;
    attention_kept(&mut sheet.arena, (heads, mask), &[item.forward], precision);
    attention_backward(&mut sheet.arena, (heads, mask), &[item], precision);
    let log_sums = View::new(item.forward.log_sums, rows, heads.heads);
    [item.forward.out, log_sums, item.dq, item.dk, item.dv].map(|view| sheet.read(view)).to_vec()
}

/// How the rows of matrices lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rows {
    /// Odd numbers apart.
    Apart,
    /// One after another.
    Close,
}

fn attention_case(
    sheet: &mut Sheet,
    (heads, mask, rows): (Heads, Mask, usize),
    lie: Rows,
) -> (Case, AttentionGradient) {
    let given = |sheet: &mut Sheet, cols: usize| match lie {
        Rows::Apart => sheet.spaced(rows, cols),
        Rows::Close => sheet.random(rows, cols),
    };
    let (q, x) = given(sheet, heads.width());
    let ((k, y), (v, z)) = (given(sheet, heads.kv_width()), given(sheet, heads.kv_width()));
    let (dout, d) = given(sheet, heads.width());
    let gap = if lie == Rows::Apart { 5 } else { 0 };
    let blank =
        |sheet: &mut Sheet, cols: usize| -> View { sheet.blank(rows, cols + gap).part((0, 0), (rows, cols)) };
    let [out, dq] = [(); 2].map(|()| blank(sheet, heads.width()));
    let [dk, dv] = [(); 2].map(|()| blank(sheet, heads.kv_width()));
    let [log_sums, inner] = [(); 2].map(|()| sheet.blank(rows, heads.heads).at);
    let forward = KeptAttention { q, k, v, out, log_sums };
    let item = AttentionGradient { forward, dout, dq, dk, dv, inner };
    let case = Case { heads, mask, rows, q: wide(&x), k: wide(&y), v: wide(&z), dout: wide(&d) };
    (case, item)
}
