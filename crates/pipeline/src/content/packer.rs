//! The writer's half of content: seals pieces, fills packs, builds layers, stores both.
//!
//! [`Packer::step`] waits for the next thing to happen and does it. It is cancel-safe: whatever it waits on
//! lives in the packer.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use holdfast_core::{
    Clock, Epoch, Extent, Instant, Layer, PackId, PieceId, Random, Result, Sink, sink::Body,
};
use holdfast_repo::{
    layer::{RowBuffer, StateBuilder},
    names::Stream,
    pack::{PackBuilder, SealedPiece, seal_piece},
    seal::Key,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Command, Inlet, Live, PIECE_COST};
use crate::{gauges::Gauges, pool::Pool, store::create_ours};

/// A pack closes so long after its first piece, full or not.
const OPEN_FOR: Duration = Duration::from_millis(500);

type Ticket = oneshot::Sender<Result<Extent>>;

pub(crate) struct Packer {
    tools: Tools,
    inlet: Inlet,
    open: Option<OpenPack>,
    /// Close the open pack as soon as every piece that came before is in it.
    flush: bool,
    next_pack: u64,
    next_state: u64,
    sealing: FuturesUnordered<BoxFuture<'static, Result<Sealed>>>,
    storing: FuturesUnordered<BoxFuture<'static, Result<Stored>>>,
    /// One layer is built at a time: it takes as much memory again as its rows.
    layers: VecDeque<(RowBuffer, oneshot::Sender<Result<Layer>>)>,
    building: FuturesUnordered<BoxFuture<'static, Result<Built>>>,
}

/// What both packs and layers are made with.
#[derive(Clone)]
pub(crate) struct Tools {
    pub sink: Arc<dyn Sink>,
    pub stream: Stream,
    pub epoch: Epoch,
    pub source_key: Key,
    pub data_key: Key,
    pub pool: Pool,
    pub clock: Clock,
    pub random: Random,
    pub gauges: Arc<Gauges>,
}

struct OpenPack {
    builder: PackBuilder,
    since: Instant,
    waiting: Vec<(Ticket, Extent)>,
    permits: Vec<OwnedSemaphorePermit>,
}

struct Sealed {
    piece: SealedPiece,
    ticket: Ticket,
    permit: OwnedSemaphorePermit,
}

struct Stored {
    waiting: Vec<(Ticket, Extent)>,
    bytes: u64,
    _permits: Vec<OwnedSemaphorePermit>,
}

struct Built {
    layer: Layer,
    next_state: u64,
    done: oneshot::Sender<Result<Layer>>,
}

impl Packer {
    pub fn new(tools: Tools, inlet: Inlet) -> Self {
        Self {
            tools,
            inlet,
            open: None,
            flush: false,
            next_pack: 0,
            next_state: 0,
            sealing: FuturesUnordered::new(),
            storing: FuturesUnordered::new(),
            layers: VecDeque::new(),
            building: FuturesUnordered::new(),
        }
    }
    /// The runs of this tenure.
    pub fn live(&self) -> &Mutex<Live> {
        &self.inlet.live
    }

    /// Does the next thing; an error ends the tenure.
    pub async fn step(&mut self) -> Result<()> {
        let close_at = self.open.as_ref().map(|open| open.since + OPEN_FOR);
        let clock = self.tools.clock.clone();
        let closes = async {
            match close_at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(stored) = self.storing.next() => self.stored(stored?),
            Some(built) = self.building.next() => self.built(built?),
            Some(sealed) = self.sealing.next() => self.sealed(sealed?)?,
            Some(command) = self.inlet.commands.recv() => self.take(command)?,
            () = closes => self.close()?,
        }
        Ok(())
    }

    fn take(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Piece { bytes, mut permit, ticket } => {
                let piece = PieceId(self.tools.random.array());
                let tools = self.tools.clone();
                self.tools.gauges.content(|content| content.received += bytes.len() as u64);
                self.sealing.push(Box::pin(async move {
                    let (key, epoch) = (tools.data_key, tools.epoch);
                    let piece = tools.pool.run(move || seal_piece(&key, epoch, piece, &bytes)).await??;
                    // From here on only the sealed bytes are held: a pack of well compressed pieces could not fill
                    // within the budget otherwise.
                    let held = piece.bytes.len() + PIECE_COST;
                    drop(permit.split(permit.num_permits().saturating_sub(held)));
                    Ok(Sealed { piece, ticket, permit })
                }));
                Ok(())
            }
            Command::Flush => {
                self.flush = true;
                self.close_if_flushed()
            }
            Command::Layer { rows, done } => {
                self.layers.push_back((rows, done));
                self.build_next();
                Ok(())
            }
        }
    }

    fn sealed(&mut self, sealed: Sealed) -> Result<()> {
        let tools = &self.tools;
        let open = self.open.get_or_insert_with(|| {
            let pack = PackId { epoch: tools.epoch, number: self.next_pack };
            OpenPack {
                builder: PackBuilder::new(&tools.source_key, tools.stream, pack, &tools.random),
                since: tools.clock.now(),
                waiting: Vec::new(),
                permits: Vec::new(),
            }
        });
        let extent = open.builder.push(sealed.piece);
        open.waiting.push((sealed.ticket, extent));
        open.permits.push(sealed.permit);
        let full = open.builder.is_full() || open.builder.len() >= self.inlet.pack_bytes;
        if full { self.close() } else { self.close_if_flushed() }
    }

    fn close_if_flushed(&mut self) -> Result<()> {
        if self.flush && self.sealing.is_empty() {
            self.flush = false;
            return self.close();
        }
        Ok(())
    }

    /// Sends the open pack on its way.
    fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.next_pack += 1;
        self.inlet.packs.store(self.next_pack, Relaxed);
        let id = open.builder.id();
        let name = self.tools.stream.pack(id.epoch, id.number);
        let (waiting, permits) = (open.waiting, open.permits);
        let (tools, builder) = (self.tools.clone(), open.builder);
        self.storing.push(Box::pin(async move {
            let body: Body = tools.pool.run(move || builder.finish()).await??;
            create_ours(&*tools.sink, &name, &body).await?;
            Ok(Stored { waiting, bytes: body.len() as u64, _permits: permits })
        }));
        Ok(())
    }

    fn stored(&mut self, stored: Stored) {
        self.tools.gauges.content(|content| {
            content.stored += stored.bytes;
            content.packs += 1;
        });
        for (ticket, extent) in stored.waiting {
            // Nobody waits for a ticket that was dropped.
            let _ = ticket.send(Ok(extent));
        }
    }

    fn build_next(&mut self) {
        if self.building.is_empty()
            && let Some((rows, done)) = self.layers.pop_front()
        {
            let (tools, number) = (self.tools.clone(), self.next_state);
            self.building.push(Box::pin(build(tools, rows, number, done)));
        }
    }

    fn built(&mut self, built: Built) {
        self.next_state = built.next_state;
        self.tools.gauges.content(|content| {
            content.stored += built.layer.objects.iter().map(|object| object.bytes).sum::<u64>();
            content.layers += 1;
        });
        let _ = built.done.send(Ok(built.layer));
        self.build_next();
    }
}

/// Writes rows as a layer, object by object.
async fn build(
    tools: Tools,
    mut rows: RowBuffer,
    mut number: u64,
    done: oneshot::Sender<Result<Layer>>,
) -> Result<Built> {
    let mut layer = Layer { objects: Vec::new() };
    while !rows.is_empty() {
        let mut builder =
            StateBuilder::new(&tools.source_key, tools.stream, tools.epoch, number, &tools.random);
        let (body, object, rest) = tools
            .pool
            .run(move || -> Result<_> {
                while !builder.is_full()
                    && let Some(row) = rows.pop()
                {
                    builder.push(&row)?;
                }
                let (body, object) = builder.finish()?;
                Ok((body, object, rows))
            })
            .await??;
        rows = rest;
        create_ours(&*tools.sink, &tools.stream.state(tools.epoch, number), &body).await?;
        layer.objects.push(object);
        number += 1;
    }
    Ok(Built { layer, next_state: number, done })
}
