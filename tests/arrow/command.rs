use std::collections::HashMap;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

fn solve(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::cargo_bin("lapidary").unwrap();
    command.arg("solve").arg(file).args(["--device", "host"]).args(more).output().unwrap()
}

type Slab = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn f64s(name: &'static str, shape: &[usize], values: &[f64]) -> Slab {
    (name, Dtype::F64, shape.to_vec(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// The worked example beside `System`.
fn example() -> Vec<Slab> {
    vec![
        f64s("row_hessian", &[2, 1, 1], &[2.0, 4.0]),
        f64s("row_cross", &[2, 1, 1], &[1.0, 2.0]),
        f64s("border_hessian", &[1, 1], &[4.0]),
        f64s("row_rhs", &[2, 1], &[5.0, 16.0]),
        f64s("border_rhs", &[1], &[17.0]),
    ]
}

fn write(file: &Path, slabs: &[Slab]) {
    let tensors = slabs
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let no_metadata: Option<HashMap<String, String>> = None;
    std::fs::write(file, safetensors::serialize(tensors, no_metadata).unwrap()).unwrap();
}

#[test]
fn no_file_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.safetensors");
    write(&file, &example());
    let before = std::fs::read(&file).unwrap();
    let output = solve(&file, &["-o", file.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("exists already"), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn a_file_is_solved() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    let mut ragged = example();
    ragged[0] = f64s("row_hessian", &[2], &[2.0, 4.0]);
    ragged.push((
        "row_offsets",
        Dtype::I64,
        vec![3],
        [0i64, 1, 2].iter().flat_map(|v| v.to_le_bytes()).collect(),
    ));
    let mut diagonal = example();
    diagonal[2] = f64s("border_diagonal", &[1], &[4.0]);
    for slabs in [example(), ragged, diagonal] {
        write(&file, &slabs);
        let output = solve(&file, &["--json", "-o", out.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["residual"].as_f64().unwrap() < 1e-15);
        assert!((report["log_det"].as_f64().unwrap() - 20f64.ln()).abs() < 1e-14);
        assert_eq!(report["about"]["path"], "host");
        let bytes = std::fs::read(&out).unwrap();
        std::fs::remove_file(&out).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |name: &str| -> Vec<f64> {
            let data = tensors.tensor(name).unwrap().data().to_vec();
            data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        };
        for (got, expected) in
            numbers("delta_row").into_iter().chain(numbers("delta_border")).zip([1.2, 2.7, 2.6])
        {
            assert!((got - expected).abs() < 1e-14);
        }
    }
    let output = solve(&file, &["--ridge", "1"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("ridge        1e0 on rows"));
}

#[test]
fn devices_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.safetensors");
    write(&file, &example());
    for (device, expected) in
        [("wgpu", "arrow systems do not run on wgpu: use auto, host or cuda"), ("gpu", "unknown device")]
    {
        let mut command = Command::cargo_bin("lapidary").unwrap();
        let output = command.arg("solve").arg(&file).args(["--device", device]).output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    }
}

#[test]
fn bad_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.safetensors");
    let with = |index: usize, slab: Slab| {
        let mut slabs = example();
        slabs[index] = slab;
        slabs
    };
    // p = 4, M = 2, so r = 2.
    let jacobian = |shape: &[usize]| {
        vec![
            f64s("row_hessian", &[2, 1, 1], &[2.0, 4.0]),
            f64s("row_basis", &[2, 2], &[1.0; 4]),
            f64s("row_jacobian", shape, &[0.1; 4]),
            f64s("border_diagonal", &[4], &[4.0; 4]),
            f64s("row_rhs", &[2], &[5.0, 16.0]),
            f64s("border_rhs", &[4], &[1.0; 4]),
        ]
    };
    let f32s = ("row_rhs", Dtype::F32, vec![2, 1], vec![0; 8]);
    for (slabs, expected) in [
        (example()[..4].to_vec(), "tensor `border_rhs` is missing"),
        (with(3, f32s), "tensor `row_rhs` is stored as F32"),
        (with(0, f64s("row_hessian", &[2], &[2.0, 4.0])), "tensor `row_hessian` has the shape [2]"),
        (with(0, f64s("row_hessian", &[2, 2, 1], &[1.0; 4])), "tensor `row_hessian` has the shape [2, 2, 1]"),
        (
            with(1, f64s("row_cross", &[1], &[1.0])),
            "`row_cross` has the shape [1]; it must be [2, 1, 1] or [2, 1]",
        ),
        (with(1, f64s("row_cross", &[1, 2], &[1.0; 2])), "`row_cross` has the shape [1, 2]"),
        (
            with(2, f64s("border_hessian", &[1], &[4.0])),
            "`border_hessian` has the shape [1]; it must be [1, 1]",
        ),
        (with(3, f64s("row_rhs", &[3], &[1.0; 3])), "`row_rhs` has the shape [3]; it must be [2, 1] or [2]"),
        (with(3, f64s("row_rhs", &[1, 2], &[1.0; 2])), "`row_rhs` has the shape [1, 2]"),
        (with(4, f64s("border_rhs", &[1, 1], &[1.0])), "`border_rhs` has the shape [1, 1]; it must be [1]"),
        (jacobian(&[4]), "`row_jacobian` has the shape [4]; it must be [2, 1, 2] or [2, 2]"),
        (jacobian(&[1, 4]), "`row_jacobian` has the shape [1, 4]"),
        (with(2, f64s("border_hessian", &[1, 1], &[-4.0])), "the border is not positive definite"),
        (
            [&example()[..], &[f64s("border_diagonal", &[1], &[5.0])]].concat(),
            "holds both `border_hessian` and `border_diagonal`",
        ),
        (
            [jacobian(&[2, 2]), vec![f64s("row_cross", &[2, 4], &[1.0; 8])]].concat(),
            "holds both `row_cross` and `row_basis`",
        ),
    ] {
        write(&file, &slabs);
        let output = solve(&file, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(text.starts_with("error: ") && text.contains(expected), "{text:?} lacks {expected:?}");
    }
    write(&file, &jacobian(&[2, 2]));
    assert!(solve(&file, &[]).status.success());
    std::fs::write(&file, b"no tensors").unwrap();
    assert!(!solve(&file, &[]).status.success());
    write(&file, &example());
    let output = solve(&file, &["--memory", "8"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("8 are free"));
}
