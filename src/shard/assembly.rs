//! Outputs, put together from parts.

use std::ops::Range;

use super::{Engine, PartArray, Units, Values};
use crate::error::{Error, Result};
use crate::host::{Dtype, HostTensor};

/// An output of a whole call, and how it comes from parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: Dtype,
    /// What of the parts it is made of.
    pub source: Source,
}

/// What of the parts an output is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Each part has some of its units, under its name.
    Placed(Units),
    /// The sum over all parts' terms, in increasing order, an f32 `[width]`.
    Summed {
        /// What the parts call the terms, `[terms, width]`: f32, which are summed in f32, or the reference's float64.
        array: String,
        /// How many terms there are in all.
        terms: usize,
        /// Old values to add the sum to; where it is 0 their bits stay.
        onto: Option<HostTensor>,
    },
}

impl Output {
    /// What the parts call it.
    pub fn array(&self) -> &str {
        match &self.source {
            Source::Placed(_) => &self.name,
            Source::Summed { array, .. } => array,
        }
    }

    /// How many units or terms there are in all.
    pub fn units(&self) -> usize {
        match &self.source {
            Source::Placed(units) => units.count(),
            Source::Summed { terms, .. } => *terms,
        }
    }

    /// The shape of the array of a part that has so many of them.
    pub fn part_shape(&self, units: usize) -> Vec<usize> {
        match &self.source {
            Source::Placed(of) => of.part_shape(units),
            Source::Summed { .. } => vec![units, self.shape.iter().product()],
        }
    }

    /// The array of a part that has no unit of it.
    pub(super) fn nothing(&self, engine: &Engine<'_>) -> PartArray {
        let width = self.shape.iter().product();
        let values = match &self.source {
            Source::Placed(_) => Values::Tensor(HostTensor::zeros(self.dtype, &self.part_shape(0))),
            Source::Summed { .. } if engine.is_reference() => {
                Values::Doubles { width, values: Vec::new() }
            }
            Source::Summed { .. } => Values::Tensor(HostTensor::zeros(Dtype::F32, &[0, width])),
        };
        PartArray { name: self.array().into(), units: 0..0, values }
    }
}

/// Outputs under way: give it the arrays of all parts, in any order, then [`finish`](Self::finish).
#[derive(Debug)]
pub struct Assembly(Vec<Slot>);

#[derive(Debug)]
struct Slot {
    output: Output,
    /// Zeros where no unit has been placed.
    whole: HostTensor,
    /// The terms of a sum.
    terms: Vec<(Range<usize>, Values)>,
    /// The units that there are, without those of empty parts.
    found: Vec<Range<usize>>,
}

impl Assembly {
    /// Of these outputs; their memory is taken here.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shape of an output is not that of its units.
    pub fn new(outputs: Vec<Output>) -> Result<Self> {
        let slot = |output: Output| {
            let elements = crate::runtime::strided::count(&output.shape);
            let fits = match &output.source {
                Source::Placed(units) => elements == Some(units.elements()),
                Source::Summed { onto, .. } => {
                    output.dtype == Dtype::F32
                        && elements.is_some()
                        && onto.as_ref().is_none_or(|old| {
                            old.dtype() == Dtype::F32 && old.shape() == output.shape
                        })
                }
            };
            if !fits {
                return Err(Error::Parameter {
                    name: "output",
                    expected: format!("`{}` with as many elements as its units have", output.name),
                    found: format!("{} {:?}", output.dtype, output.shape),
                });
            }
            let whole = HostTensor::zeros(output.dtype, &output.shape);
            Ok(Slot { output, whole, terms: Vec::new(), found: Vec::new() })
        };
        outputs.into_iter().map(slot).collect::<Result<_>>().map(Self)
    }

    /// Adds an array of a part.
    ///
    /// # Errors
    /// [`Error::Parameter`] when there is no such output, or its units have another shape or element type.
    pub fn add(&mut self, part: PartArray) -> Result<()> {
        let Some(slot) = self.0.iter_mut().find(|slot| slot.output.array() == part.name) else {
            return Err(Error::Parameter {
                name: "part",
                expected: "an array of an output".into(),
                found: format!("`{}`", part.name),
            });
        };
        match (&slot.output.source, part.values) {
            (Source::Placed(units), Values::Tensor(tensor)) => {
                units.check(&part.name, slot.output.dtype, &part.units, &tensor)?;
                units.put(&mut slot.whole, part.units.clone(), &tensor);
            }
            (Source::Summed { terms, .. }, values) => {
                let width: usize = slot.output.shape.iter().product();
                let expected = [part.units.len(), width];
                // Without a width any number of terms is none.
                let fits = values.shape() == expected || width == 0;
                if !fits || part.units.start > part.units.end || part.units.end > *terms {
                    return Err(Error::Parameter {
                        name: "part",
                        expected: format!("{expected:?} terms of `{}`", part.name),
                        found: format!("{:?}", values.shape()),
                    });
                }
                slot.terms.push((part.units.clone(), values));
            }
            (Source::Placed(_), Values::Doubles { .. }) => {
                return Err(Error::Parameter {
                    name: "part",
                    expected: format!("{} elements of `{}`", slot.output.dtype, part.name),
                    found: "float64".into(),
                });
            }
        }
        slot.found.extend((!part.units.is_empty()).then_some(part.units));
        Ok(())
    }

    /// The outputs with their names, in order.
    ///
    /// # Errors
    /// [`Error::Parameter`] when units are missing, or there twice.
    pub fn finish(self) -> Result<Vec<(String, HostTensor)>> {
        self.0.into_iter().map(Slot::finish).collect()
    }
}

impl Slot {
    fn finish(mut self) -> Result<(String, HostTensor)> {
        self.found.sort_by_key(|units| units.start);
        let end =
            self.found.iter().try_fold(0, |end, units| (units.start == end).then_some(units.end));
        if end != Some(self.output.units()) {
            return Err(Error::Parameter {
                name: "parts",
                expected: format!(
                    "each of the {} units of `{}` once",
                    self.output.units(),
                    self.output.name
                ),
                found: format!("{:?}", self.found),
            });
        }
        if let Source::Summed { onto, .. } = &self.output.source {
            self.terms.sort_by_key(|(units, _)| units.start);
            let terms = self.terms.iter().map(|(_, values)| values);
            self.whole = sum(&self.output.shape, terms, onto.as_ref())?;
        }
        Ok((self.output.name, self.whole))
    }
}

/// The sum of all terms in order, in their own precision, added to the old values.
fn sum<'a>(
    shape: &[usize],
    parts: impl Iterator<Item = &'a Values> + Clone,
    onto: Option<&HostTensor>,
) -> Result<HostTensor> {
    let width = shape.iter().product::<usize>();
    let old = onto.and_then(HostTensor::as_f32);
    let singles = parts.clone().map(|part| match part {
        Values::Tensor(tensor) => tensor.as_f32(),
        Values::Doubles { .. } => None,
    });
    if let Some(singles) = singles.collect::<Option<Vec<_>>>() {
        let mut sums = vec![0f32; width];
        for term in singles.iter().flat_map(|part| part.chunks_exact(width.max(1))) {
            sums.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
        }
        // As the kernels add: a 0 leaves the old bits.
        let added = |(sum, &old): (&mut f32, &f32)| {
            *sum = if *sum == 0.0 { old } else { old + *sum };
        };
        sums.iter_mut().zip(old.unwrap_or_default()).for_each(added);
        return HostTensor::from_f32(shape, sums);
    }
    let mut sums = vec![0f64; width];
    for part in parts {
        let Values::Doubles { values, .. } = part else {
            return Err(Error::Parameter {
                name: "parts",
                expected: "terms of one element type".into(),
                found: "float32 and float64".into(),
            });
        };
        for term in values.chunks_exact(width.max(1)) {
            sums.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
        }
    }
    let old = old.unwrap_or_default();
    sums.iter_mut().zip(old).for_each(|(sum, &old)| *sum += f64::from(old));
    HostTensor::from_f32(shape, sums.iter().map(|&sum| sum as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(source: Source) -> Output {
        Output { name: "a".into(), shape: vec![4, 2], dtype: Dtype::F32, source }
    }

    fn placed() -> Assembly {
        Assembly::new(vec![output(Source::Placed(Units::of_rows(vec![4, 2])))]).unwrap()
    }

    fn part(units: Range<usize>, value: f32) -> PartArray {
        let data = vec![value; 2 * units.len()];
        let tensor = HostTensor::from_f32(&[units.len(), 2], data).unwrap();
        PartArray::new("a", units, tensor)
    }

    #[test]
    fn parts_come_in_any_order_and_may_be_empty() {
        let mut assembly = placed();
        for part in [part(1..4, 2.0), part(4..4, 0.0), part(0..1, 1.0), part(0..0, 0.0)] {
            assembly.add(part).unwrap();
        }
        let (name, whole) = assembly.finish().unwrap().remove(0);
        assert_eq!(name, "a");
        assert_eq!(whole.as_f32().unwrap(), [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn missing_and_repeated_units_are_refused() {
        for ranges in [&[0..1, 2..4][..], &[0..1, 1..3], &[0..2, 1..4], &[0..4, 0..4], &[]] {
            let mut assembly = placed();
            ranges.iter().for_each(|units| assembly.add(part(units.clone(), 1.0)).unwrap());
            let error = assembly.finish().unwrap_err().to_string();
            assert!(error.contains("4 units of `a`"), "{error}");
        }
        assert!(placed().add(part(3..5, 1.0)).is_err());
        let other = PartArray { name: "b".into(), ..part(0..1, 1.0) };
        assert!(placed().add(other).unwrap_err().to_string().contains("`b`"));
        let doubles = Values::Doubles { width: 2, values: vec![0.0; 2] };
        assert!(placed().add(PartArray { values: doubles, ..part(0..1, 1.0) }).is_err());
        let wrong = output(Source::Placed(Units::of_rows(vec![4, 3])));
        assert!(Assembly::new(vec![wrong]).is_err());
    }

    fn summed(terms: &[f32], onto: Option<f32>, in_f64: bool) -> u32 {
        let onto = onto.map(|old| HostTensor::from_f32(&[1], vec![old]).unwrap());
        let source = Source::Summed { array: "t".into(), terms: terms.len(), onto };
        let output = Output { shape: vec![1], ..output(source) };
        let mut assembly = Assembly::new(vec![output]).unwrap();
        // The last one first.
        for (index, &term) in terms.iter().enumerate().rev() {
            let values = match in_f64 {
                true => Values::Doubles { width: 1, values: vec![term.into()] },
                false => Values::Tensor(HostTensor::from_f32(&[1, 1], vec![term]).unwrap()),
            };
            assembly.add(PartArray { name: "t".into(), units: index..index + 1, values }).unwrap();
        }
        assembly.finish().unwrap()[0].1.as_f32().unwrap()[0].to_bits()
    }

    #[test]
    fn terms_are_summed_in_order_and_precision() {
        let terms = [1e8, 1.0, -1e8, 1.0];
        assert_eq!(summed(&terms, None, false), 1f32.to_bits());
        assert_eq!(summed(&terms, None, true), 2f32.to_bits());
        assert_eq!(summed(&terms, Some(0.5), false), 1.5f32.to_bits());
        assert_eq!(summed(&terms, Some(0.5), true), 2.5f32.to_bits());
        assert_eq!(summed(&[1.0, -1.0], Some(-0.0), false), (-0.0f32).to_bits());
        assert_eq!(summed(&[], Some(3.0), false), 3f32.to_bits());
    }
}
