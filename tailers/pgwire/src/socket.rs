//! One byte stream of three kinds: TCP, unix socket, either under TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::client::TlsStream;

use crate::{Error, Result, inbox::Inbox, message::Message};

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Socket>>),
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_read(cx, out),
            Self::Unix(inner) => Pin::new(inner).poll_read(cx, out),
            Self::Tls(inner) => Pin::new(inner.as_mut()).poll_read(cx, out),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_write(cx, bytes),
            Self::Unix(inner) => Pin::new(inner).poll_write(cx, bytes),
            Self::Tls(inner) => Pin::new(inner.as_mut()).poll_write(cx, bytes),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_flush(cx),
            Self::Unix(inner) => Pin::new(inner).poll_flush(cx),
            Self::Tls(inner) => Pin::new(inner.as_mut()).poll_flush(cx),
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_shutdown(cx),
            Self::Unix(inner) => Pin::new(inner).poll_shutdown(cx),
            Self::Tls(inner) => Pin::new(inner.as_mut()).poll_shutdown(cx),
        }
    }
}

/// The receiving end of a connection.
pub(crate) struct Incoming {
    half: ReadHalf<Socket>,
    pub inbox: Inbox,
}

impl Incoming {
    /// The next message. Cancel-safe: what was read stays in the inbox.
    pub(crate) async fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.inbox.take()? {
                return Ok(message);
            }
            self.inbox.make_room()?;
            match self.half.read_buf(&mut self.inbox.buffer).await {
                Ok(0) => return Err(Error::Closed),
                Ok(_) => {}
                // A server that is killed under TLS leaves without the closing alert.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Error::Closed),
                Err(error) => return Err(Error::Io(error)),
            }
        }
    }
}

/// The sending end of a connection.
pub(crate) struct Outgoing {
    half: WriteHalf<Socket>,
    /// Bytes to send, in order.
    pub buffer: BytesMut,
}

impl Outgoing {
    /// Sends the buffer. Cancel-safe: the next call goes on where a dropped one stood.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        while self.buffer.has_remaining() {
            if self.half.write_buf(&mut self.buffer).await.map_err(Error::Io)? == 0 {
                return Err(Error::Closed);
            }
        }
        self.half.flush().await.map_err(Error::Io)
    }
    /// Says good-bye as far as that is possible; the server notices the closed socket anyway.
    pub(crate) async fn terminate(mut self) {
        postgres_protocol::message::frontend::terminate(&mut self.buffer);
        if self.flush().await.is_ok() {
            let _ = self.half.shutdown().await;
        }
    }
}

pub(crate) fn split(socket: Socket) -> (Incoming, Outgoing) {
    let (read, write) = tokio::io::split(socket);
    (Incoming { half: read, inbox: Inbox::new() }, Outgoing { half: write, buffer: BytesMut::new() })
}
