//! Connections: accepted, served, and ended when the server ends. axum's own server sets no limit on the time a request's head may take, so that a
//! client who sends a byte now and then would hold a connection for good.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};

use axum::{Router, body::Body, serve::Listener};
use futures::FutureExt;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1::{self, Parts},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

/// What a client is told who took too long over a head. No handler is there yet that could say it.
const LATE_HEAD: &[u8] = b"HTTP/1.1 408 Request Timeout\r\n\
content-type: application/json\r\n\
x-content-type-options: nosniff\r\n\
cache-control: no-store\r\n\
connection: close\r\n\
content-length: 125\r\n\r\n\
{\"error\":{\"message\":\"the request's head took too long\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"request_timeout\"}}";

/// Connections at once. Further ones wait in the listener's backlog, and those without a request are not kept for long.
const CONNECTIONS_MAX: usize = 4096;

/// How long a connection is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A head may take as long, and a connection may wait as long for its next request.
    pub head: Duration,
    /// A client may take nothing for as long, while there is something for it.
    pub write: Duration,
}

/// Serves until `stop` holds true and the connections of that moment have answered what they were asked.
///
/// Dropping this ends all connections.
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    patience: Patience,
    stop: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(patience.head);
    let mut connections = JoinSet::new();
    let mut stopping = pin!(stopped(stop.clone()));
    loop {
        tokio::select! {
            (socket, _) = Listener::accept(&mut listener), if connections.len() < CONNECTIONS_MAX => {
                let _ = socket.set_nodelay(true); // a token is a small packet that must not wait for the next
                let mut socket = TimeoutStream::new(socket);
                socket.set_write_timeout(Some(patience.write));
                connections.spawn(connection(http.clone(), Box::pin(socket), router.clone(), stop.clone()));
            }
            // one that panicked has ended like any other
            Some(_) = connections.join_next() => {}
            () = &mut stopping => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    http: http1::Builder,
    socket: Pin<Box<TimeoutStream<TcpStream>>>,
    router: Router,
    stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        Box::pin(router.clone().oneshot(request.map(Body::new)))
    });
    let mut connection = http.serve_connection(TokioIo::new(socket), service);
    let mut stopping = pin!(stopped(stop).fuse());
    let ended = loop {
        tokio::select! {
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break ended,
            () = &mut stopping => Pin::new(&mut connection).graceful_shutdown(),
        }
    };
    let Parts { io, read_buf, .. } = connection.into_parts();
    let mut socket = io.into_inner();
    // A connection that waited in silence is closed in silence: a client would take the words for the answer to its next request.
    if ended.is_err_and(|error| error.is_timeout()) && !read_buf.is_empty() {
        let _ = socket.write_all(LATE_HEAD).await;
    }
    let _ = socket.shutdown().await; // the client may have gone
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // an error means that nobody can say so any more
}
