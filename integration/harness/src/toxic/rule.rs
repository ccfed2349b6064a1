//! Which request meets which fault. No chance is involved: a rule acts on every n-th request that it matches, so a
//! failing run can be run again.

use std::time::Duration;

use hyper::{Method, Uri};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request goes on this much later.
    Delay(Duration),
    /// Answered here, without the store seeing it.
    Status(u16),
    /// The connection is cut before the store sees the request.
    Reset,
    /// The store did it; its answer never arrives.
    LoseAnswer,
    /// Neither forwarded nor answered, as long as the client waits.
    Silence,
}

/// One rule; `new` matches every request.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    method: Option<Method>,
    path: Option<String>,
    every: u64,
    times: u64,
    seen: u64,
}

impl Rule {
    pub fn new(fault: Fault) -> Self {
        Self { fault, method: None, path: None, every: 1, times: u64::MAX, seen: 0 }
    }

    /// Only this method (`PUT`, `GET`, …).
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Only requests whose path or query holds this text.
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Only every n-th matching request.
    pub fn every(mut self, n: u64) -> Self {
        self.every = n.max(1);
        self
    }

    /// No more than so often.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    fn acts(&mut self, method: &Method, uri: &Uri) -> bool {
        let named = self.path.as_ref().is_none_or(|part| uri.to_string().contains(part.as_str()));
        if self.times == 0 || !named || self.method.as_ref().is_some_and(|wanted| wanted != method) {
            return false;
        }
        self.seen += 1;
        let acts = self.seen.is_multiple_of(self.every);
        if acts {
            self.times -= 1;
        }
        acts
    }
}

/// What happens to one request: delays add up, the first other fault decides.
#[derive(Debug, Default)]
pub struct Verdict {
    pub delay: Duration,
    pub fault: Option<Fault>,
}

#[derive(Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    pub fn set(&mut self, rules: impl IntoIterator<Item = Rule>) {
        self.0 = rules.into_iter().collect();
    }

    pub fn judge(&mut self, method: &Method, uri: &Uri) -> Verdict {
        let mut verdict = Verdict::default();
        for rule in &mut self.0 {
            if verdict.fault.is_some() && !matches!(rule.fault, Fault::Delay(_)) {
                continue;
            }
            if rule.acts(method, uri) {
                match rule.fault {
                    Fault::Delay(delay) => verdict.delay += delay,
                    ref other => verdict.fault = Some(other.clone()),
                }
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn every_third_put_of_a_name_is_reset_twice() {
        let mut rules = Rules::default();
        rules.set([Rule::new(Fault::Reset).method(Method::PUT).path("/packs/").every(3).times(2)]);
        let mut hits = Vec::new();
        for n in 1..=12 {
            assert_eq!(rules.judge(&Method::GET, &uri("/b/packs/x")).fault, None);
            assert_eq!(rules.judge(&Method::PUT, &uri("/b/log/x")).fault, None);
            if rules.judge(&Method::PUT, &uri("/b/packs/x")).fault.is_some() {
                hits.push(n);
            }
        }
        assert_eq!(hits, [3, 6]);
    }

    #[test]
    fn delays_add_up_and_the_first_fault_decides() {
        let mut rules = Rules::default();
        let delay = Duration::from_millis(20);
        rules.set([
            Rule::new(Fault::Delay(delay)),
            Rule::new(Fault::Status(503)).times(1),
            Rule::new(Fault::Reset).times(1),
            Rule::new(Fault::Delay(delay)),
        ]);
        let first = rules.judge(&Method::GET, &uri("/"));
        assert_eq!((first.delay, first.fault), (delay * 2, Some(Fault::Status(503))));
        assert_eq!(rules.judge(&Method::GET, &uri("/")).fault, Some(Fault::Reset));
        assert_eq!(rules.judge(&Method::GET, &uri("/")).fault, None);
    }
}
