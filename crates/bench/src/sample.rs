//! What a round measured: sums and latency distributions, which add up over threads and rounds.

use hdrhistogram::Histogram;
use quire_base::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// A latency distribution, in nanoseconds.
pub struct Latency(Histogram<u64>);

/// Nothing that is waited for takes longer; what does counts as this, nanoseconds.
const LONGEST: u64 = 600_000_000_000;

impl Latency {
    /// Empty; three significant digits up to ten minutes.
    pub fn new() -> Latency {
        Latency(Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are constants that fit"))
    }

    /// Adds one.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos() as u64);
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Latency) -> Result<()> {
        self.0.add(&other.0).map_err(|error| Error::invalid(format!("adding latencies: {error}")))
    }

    /// The value that `percent` of all are at or below, in microseconds; 0 if there are none.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_percentile(percent) as f64 / 1000.0 }
    }

    /// The longest, in microseconds.
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1000.0
    }

    /// The mean, in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

/// Sums, distributions and maxima by name.
#[derive(Default)]
pub struct Sample {
    sums: BTreeMap<&'static str, f64>,
    latencies: BTreeMap<&'static str, Latency>,
    highest: BTreeMap<&'static str, f64>,
}

impl Sample {
    /// Adds to a sum.
    pub fn add(&mut self, name: &'static str, amount: f64) {
        *self.sums.entry(name).or_default() += amount;
    }

    /// Adds a counter's growth, where it is known on both sides.
    pub fn add_growth(&mut self, name: &'static str, before: Option<u64>, after: Option<u64>) {
        if let (Some(before), Some(after)) = (before, after) {
            self.add(name, after.saturating_sub(before) as f64);
        }
    }

    /// Adds a distribution.
    pub fn add_latency(&mut self, name: &'static str, latency: &Latency) -> Result<()> {
        self.latencies.entry(name).or_default().add(latency)
    }

    /// Keeps the highest of all values given under a name.
    pub fn raise(&mut self, name: &'static str, value: f64) {
        let highest = self.highest.entry(name).or_insert(value);
        *highest = highest.max(value);
    }

    /// Adds another sample.
    pub fn merge(&mut self, other: &Sample) -> Result<()> {
        for (name, sum) in &other.sums {
            self.add(name, *sum);
        }
        for (name, value) in &other.highest {
            self.raise(name, *value);
        }
        other.latencies.iter().try_for_each(|(name, latency)| self.add_latency(name, latency))
    }

    /// A sum; 0 if nothing was added.
    pub fn sum(&self, name: &str) -> f64 {
        self.known(name).unwrap_or(0.0)
    }

    /// A sum, if anything was added.
    pub fn known(&self, name: &str) -> Option<f64> {
        self.sums.get(name).copied()
    }

    /// The highest value, if any was given.
    pub fn highest(&self, name: &str) -> Option<f64> {
        self.highest.get(name).copied()
    }

    /// One sum over another; 0 over nothing.
    pub fn rate(&self, name: &str, over: &str) -> f64 {
        let over = self.sum(over);
        if over > 0.0 { self.sum(name) / over } else { 0.0 }
    }

    /// A percentile in microseconds, if there is such a distribution.
    pub fn percentile_us(&self, name: &str, percent: f64) -> Option<f64> {
        self.latencies.get(name).map(|latency| latency.percentile_us(percent))
    }

    /// The mean of a distribution in microseconds, if anything was recorded.
    pub fn mean_us(&self, name: &str) -> Option<f64> {
        self.latencies.get(name).filter(|latency| latency.count() > 0).map(Latency::mean_us)
    }

    /// The longest of a distribution in microseconds, if there is such a distribution.
    pub fn max_us(&self, name: &str) -> Option<f64> {
        self.latencies.get(name).map(Latency::max_us)
    }
}

/// The figures of a result, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Figures(pub Vec<(String, f64)>);

impl Figures {
    /// Adds one, rounded to what the measurement carries.
    pub fn push(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), rounded(value)));
    }

    /// Adds one that may be unknown.
    pub fn push_known(&mut self, name: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value {
            self.push(name, value);
        }
    }

    /// One by name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|&(_, value)| value)
    }

    /// As the fields of a JSON object; whole numbers without a point.
    pub fn into_json(&self, object: &mut Map<String, Value>) {
        for (name, value) in &self.0 {
            let whole = value.fract() == 0.0 && value.abs() < 1e15;
            object.insert(name.clone(), if whole { Value::from(*value as i64) } else { Value::from(*value) });
        }
    }
}

/// Three digits behind the point; more below one, where they carry.
fn rounded(value: f64) -> f64 {
    if !value.is_finite() {
        return 0.0;
    }
    let scale = if value.abs() < 1.0 { 1e6 } else { 1e3 };
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_add_up() {
        let mut one = Sample::default();
        one.add("bytes", 10.0);
        one.add("seconds", 2.0);
        one.raise("memory", 7.0);
        one.raise("memory", 5.0);
        let mut latency = Latency::new();
        latency.record(Duration::from_micros(5));
        one.add_latency("read", &latency).unwrap();
        let mut all = Sample::default();
        all.merge(&one).unwrap();
        all.merge(&one).unwrap();
        assert_eq!(all.sum("bytes"), 20.0);
        assert_eq!(all.rate("bytes", "seconds"), 5.0);
        assert_eq!(all.rate("bytes", "nothing"), 0.0);
        assert_eq!((all.highest("memory"), all.highest("nothing")), (Some(7.0), None));
        assert!((all.percentile_us("read", 50.0).unwrap() - 5.0).abs() < 0.01);
        assert_eq!(all.percentile_us("write", 50.0), None);
    }

    #[test]
    fn figures_are_plain_numbers() {
        let mut figures = Figures::default();
        figures.push("torn_reads", 0.0);
        figures.push("read_mib_s", 1234.56789);
        figures.push("bad", f64::NAN);
        let mut object = Map::new();
        figures.into_json(&mut object);
        assert_eq!(Value::Object(object).to_string(), r#"{"bad":0,"read_mib_s":1234.568,"torn_reads":0}"#);
    }
}
