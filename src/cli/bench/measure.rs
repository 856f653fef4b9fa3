//! Measurements that are repeated, and the table that they end in.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::failure::Result;
use crate::cli::listings;
use crate::cli::report::Report;

/// What was measured, in the order of the repeats.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measure {
    /// What it is.
    name: &'static str,
    /// What its values are in.
    unit: &'static str,
    values: Vec<f64>,
}

impl Measure {
    /// Runs `work` once to warm up, and then so many times; each gives a value.
    pub(super) fn new(
        name: &'static str,
        unit: &'static str,
        repeats: usize,
        mut work: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        work()?;
        Ok(Self::of(name, unit, (0..repeats).map(|_| work()).collect::<Result<_>>()?))
    }

    /// Of values that were taken beside others.
    pub(super) fn of(name: &'static str, unit: &'static str, values: Vec<f64>) -> Self {
        Self { name, unit, values }
    }

    /// What it is.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// What its values are in.
    pub(super) fn unit(&self) -> &'static str {
        self.unit
    }

    /// The value that half of the repeats do not exceed.
    pub(super) fn median(&self) -> f64 {
        self.quartiles()[1]
    }

    /// The least and the largest value.
    pub(super) fn range(&self) -> [f64; 2] {
        let of = |pick: fn(f64, f64) -> f64| self.values.iter().copied().fold(f64::NAN, pick);
        [of(f64::min), of(f64::max)]
    }

    /// How many values there are.
    pub(super) fn repeats(&self) -> usize {
        self.values.len()
    }

    /// Median and quartiles, in three digits.
    pub(super) fn words(&self) -> [String; 2] {
        let [low, median, high] = self.quartiles().map(figure);
        [median, format!("{low} to {high}")]
    }

    /// The values at a quarter, half and three quarters of them in order.
    pub(super) fn quartiles(&self) -> [f64; 3] {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        let at = |part: f64| {
            let place = part * last;
            let near = |place: f64| values.get(place as usize).copied().unwrap_or(f64::NAN);
            near(place.floor()) + (near(place.ceil()) - near(place.floor())) * place.fract()
        };
        [0.25, 0.5, 0.75].map(at)
    }

    fn row(&self) -> Vec<String> {
        let [median, quartiles] = self.words();
        let repeats = self.values.len().to_string();
        vec![self.name.into(), median, self.unit.into(), quartiles, repeats]
    }

    pub(super) fn object(&self) -> Value {
        let [low, median, high] = self.quartiles();
        json!({
            "name": self.name,
            "unit": self.unit,
            "median": median,
            "lower_quartile": low,
            "upper_quartile": high,
            "repeats": self.values.len(),
        })
    }
}

/// What some work takes.
pub(super) fn time<T>(work: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Three digits, or all before the point.
pub(super) fn figure(value: f64) -> String {
    let digits = value.abs().max(1e-3).log10().floor() as i32;
    format!("{value:.*}", (2 - digits).max(0) as usize)
}

/// The measurements as a command's result.
pub(super) fn report(device: String, measures: &[Measure]) -> Report {
    let titles = ["measure", "median", "unit", "quartiles", "repeats"];
    let rows = [titles.map(String::from).to_vec()].into_iter();
    let rows: Vec<_> = rows.chain(measures.iter().map(Measure::row)).collect();
    let objects: Vec<_> = measures.iter().map(Measure::object).collect();
    Report {
        device: Some(device),
        text: listings::table(&rows),
        extra: Some(("benches", Value::from(objects))),
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_values() {
        let quartiles =
            |values: &[f64]| Measure { name: "", unit: "", values: values.to_vec() }.quartiles();
        assert_eq!(quartiles(&[3.0, 1.0, 5.0, 2.0, 4.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(&[1.0, 2.0]), [1.25, 1.5, 1.75]);
        assert_eq!(quartiles(&[7.0]), [7.0; 3]);
        assert!(quartiles(&[])[1].is_nan());
    }

    #[test]
    fn the_first_run_warms_up() {
        let mut runs = 0.0;
        let measure = Measure::new("runs", "", 3, || {
            runs += 1.0;
            Ok(runs)
        });
        assert_eq!(measure.unwrap().values, [2.0, 3.0, 4.0]);
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [0.0, 0.012_34, 1.234, 56.78, 123.4, 123_456.0].map(figure);
        assert_eq!(figures, ["0.00000", "0.0123", "1.23", "56.8", "123", "123456"]);
    }
}
