//! One line of the result.

use serde_json::{Value, json};

/// Which way is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// `peer` is what the peer reached in the same run, or, where nobody else does this at all, the bound that we set
/// ourselves; `against` says which.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub ours: f64,
    pub peer: f64,
    pub better: Better,
    pub against: &'static str,
}

impl Figure {
    pub fn lower(
        name: impl Into<String>,
        unit: &'static str,
        ours: f64,
        peer: f64,
        against: &'static str,
    ) -> Self {
        Self { name: name.into(), unit, ours, peer, better: Better::Lower, against }
    }

    pub fn higher(
        name: impl Into<String>,
        unit: &'static str,
        ours: f64,
        peer: f64,
        against: &'static str,
    ) -> Self {
        Self { name: name.into(), unit, ours, peer, better: Better::Higher, against }
    }

    /// Above 1: we are ahead. Two zeros are even.
    pub fn ratio(&self) -> f64 {
        let (over, under) = match self.better {
            Better::Lower => (self.peer, self.ours),
            Better::Higher => (self.ours, self.peer),
        };
        if over == under {
            return 1.0;
        }
        // JSON knows no infinity.
        if under == 0.0 { 1e9 } else { over / under }
    }

    pub fn line(&self) -> String {
        format!(
            "{:<104} ours {:>9.3} {}   {} {:>9.3}   ratio {:.2}",
            self.name,
            self.ours,
            self.unit,
            self.against,
            self.peer,
            self.ratio()
        )
    }

    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "ratio": self.ratio(),
            "better": match self.better { Better::Lower => "lower", Better::Higher => "higher" },
        })
    }
}

/// Of values in order; 0 when there are none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).or(sorted.last()).copied().unwrap_or(0.0)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}
