//! What the benches' client makes of server-sent events, however their bytes are cut.

#[path = "../../benches/common/load/sse.rs"]
mod sse;

use sse::Events;

/// The data of the events in a text, however it is cut.
fn check(text: &str, expected: &[&str]) {
    for size in 1..=text.len() {
        let mut events = Events::default();
        let parts = text.as_bytes().chunks(size);
        let found: Vec<String> = parts
            .flat_map(|part| events.take(part).expect("UTF-8"))
            .collect();
        assert_eq!(found, expected, "{text:?} in parts of {size}");
    }
}

#[test]
fn events_are_read_as_the_standard_has_them() {
    check("data: a\n\ndata: b\n\n", &["a", "b"]);
    check("data: a\r\n\r\ndata: b\r\rdata: c\n\n", &["a", "b", "c"]);
    check("data: one\ndata: two\n\n", &["one\ntwo"]);
    check("data:  a\n\ndata:b\n\n", &[" a", "b"]);
    check("data\n\n", &[""]);
    check(": accepted\n\n: reading\n\ndata: a\n\n", &["a"]);
    check("event: x\nid: 7\ndata: a\nretry: 5\n\n", &["a"]);
    check(
        "data: {\"text\": \"\u{e9}: \u{1f98a}\"}\n\n",
        &["{\"text\": \"\u{e9}: \u{1f98a}\"}"],
    );
    check(
        "\u{feff}data: a\n\ndata: \u{feff}b\n\n",
        &["a", "\u{feff}b"],
    );
    check("data: a\n\ndata: cut off\n", &["a"]);
}
