use lapidary::atoms::zoo::Case;
use lapidary::atoms::{AtomsError, Ending, FitParams, Outcome, fit};

fn run(x: &[f64], width: usize) -> Result<lapidary::atoms::Fit, AtomsError> {
    fit(x, width, &FitParams::default())
}

#[test]
fn rows_that_cannot_be_fitted_are_named() {
    assert!(matches!(run(&[], 4), Err(AtomsError::Empty)));
    assert!(matches!(run(&[1.0, 2.0, 3.0], 2), Err(AtomsError::Length { got: 3, width: 2 })));
    assert!(matches!(run(&[1.0, 2.0, 3.0], 3), Err(AtomsError::Rows { got: 1 })));
    assert!(matches!(run(&[2.5; 40], 4), Err(AtomsError::Constant { rows: 10 })));
    for bad in [f64::NAN, f64::INFINITY] {
        let mut planted = Case::Circle.plant(0);
        planted.x[7 * planted.width + 3] = bad;
        let error = run(planted.fit_rows(), planted.width).unwrap_err();
        assert!(matches!(error, AtomsError::NonFinite { row: 7, column: 3, .. }), "{error}");
    }
}

#[test]
fn fewer_rows_than_unknowns_end_with_a_reason() {
    for rows in [2, 3, 5, 10, 30] {
        let planted = Case::FourCircles.plant(0);
        let found = run(&planted.x[..rows * planted.width], planted.width).unwrap();
        let certificate = found.certificate;
        assert!(found.dictionary.atoms.len() <= 1 + rows / 25, "{rows}: {certificate:?}");
        assert_ne!(certificate.ending, Ending::AtomLimit, "{rows}");
    }
}

#[test]
fn more_atoms_than_the_data_hold_are_not_born() {
    let planted = Case::Circle.plant(0);
    let params = FitParams { atoms: 50, ..FitParams::default() };
    let found = fit(planted.fit_rows(), planted.width, &params).unwrap();
    assert_eq!((found.dictionary.atoms.len(), found.certificate.ending), (1, Ending::NothingLeft));
}

#[test]
fn constant_columns_and_duplicate_rows_do_no_harm() {
    let planted = Case::Circle.plant(0);
    let wider: Vec<f64> = planted
        .fit_rows()
        .chunks_exact(planted.width)
        .flat_map(|row| row.iter().copied().chain([7.0, 0.0]))
        .collect();
    let found = run(&wider, planted.width + 2).unwrap();
    assert_eq!(found.dictionary.atoms.len(), 1);
    let twice: Vec<f64> = [planted.fit_rows(), planted.fit_rows()].concat();
    let found = run(&twice, planted.width).unwrap();
    assert_eq!(found.dictionary.atoms.len(), 1);
    assert_eq!(found.certificate.outcome, Outcome::Converged);
}

#[test]
fn a_dictionary_refuses_rows_of_another_width() {
    let planted = Case::Circle.plant(0);
    let found = run(planted.fit_rows(), planted.width).unwrap();
    let error = found.dictionary.encode(&[0.0; 30], 30).unwrap_err();
    assert!(matches!(error, AtomsError::Width { got: 30, expected: 32 }), "{error}");
}
