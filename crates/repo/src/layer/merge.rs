//! Merges layers into one ordered run of rows, later layers winning. Pure: it says which lane needs its next
//! page and holds one page a lane, so memory is bounded by the number of layers.

use bytes::Bytes;
use holdfast_core::{Error, Result, Row};

use super::page::PageRows;

/// What the merge wants or yields.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Row(Row),
    /// Call [`Merge::feed`] for this lane.
    Feed(usize),
    End,
}

/// One lane a layer, the newest last.
#[derive(Debug)]
pub struct Merge {
    lanes: Vec<Lane>,
    from: Bytes,
}

#[derive(Debug, Default)]
struct Lane {
    page: Option<PageRows>,
    head: Option<Row>,
    last: Option<Bytes>,
    ended: bool,
}

impl Merge {
    /// Rows with keys from `from` on.
    pub fn new(lanes: usize, from: Bytes) -> Self {
        Self { lanes: std::iter::repeat_with(Lane::default).take(lanes).collect(), from }
    }

    /// Gives a lane its next page, or says that it has no more.
    pub fn feed(&mut self, lane: usize, page: Option<PageRows>) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.ended = page.is_none();
            lane.page = page;
        }
    }

    /// # Errors
    /// `Corrupt` when a lane's rows do not ascend.
    pub fn step(&mut self) -> Result<Step> {
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            if !lane.fill(&self.from)? {
                return Ok(Step::Feed(at));
            }
        }
        let Some(least) = self.lanes.iter().filter_map(|l| l.head.as_ref().map(|r| &r.key)).min() else {
            return Ok(Step::End);
        };
        let least = least.clone();
        let mut winner = None;
        for lane in &mut self.lanes {
            if lane.head.as_ref().is_some_and(|row| row.key == least) {
                winner = lane.head.take();
            }
        }
        Ok(winner.map_or(Step::End, Step::Row))
    }
}

impl Lane {
    /// Makes sure that a head stands here, unless the lane ended. False: a page is needed.
    fn fill(&mut self, from: &[u8]) -> Result<bool> {
        while self.head.is_none() && !self.ended {
            let Some(page) = &mut self.page else { return Ok(false) };
            let Some(row) = page.next()? else {
                self.page = None;
                return Ok(false);
            };
            if self.last.as_ref().is_some_and(|last| row.key <= *last) {
                return Err(Error::corrupt("pages of a table layer are out of order"));
            }
            self.last = Some(row.key.clone());
            if row.key >= from {
                self.head = Some(row);
            }
        }
        Ok(true)
    }
}
