//! The router's double itself: which cell it chooses, and that it passes everything on as it comes.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::cell_router::options::Options;
use crate::cell_router::route::{Choice, Rules, UnknownCell};
use crate::cell_router::{CellRouter, Exchange};
use crate::fake_gitlab::cell::{job_token, runner_token};
use crate::fake_gitlab::port::Port;

/// Tokens of the cells 1, 2 and 36, from the specification of routable tokens.
const TOKENS: [(u64, &str); 3] = [
    (1, "glrt-AAECAwQFBgcICQoLDA0OD2M6MQpnOjgKbzpyehA.01.130rjclzj"),
    (2, "glrt-AAECAwQFBgcICQoLDA0OD2M6MgpnOjgKbzpyehA.01.1308364l0"),
    (36, "glrt-AAECAwQFBgcICQoLDA0OD2M6MTAKZzo4Cm86cnoQ.01.141as6e5e"),
];

fn rules() -> Rules {
    Rules {
        cells: BTreeSet::from([1, 2, 36]),
        paths: vec![("/cell-2/".to_owned(), 2)],
        default: 1,
        refuses_unknown: false,
    }
}

fn cell(headers: &[(&str, &str)]) -> u64 {
    rules().choose("/api/v4/jobs/request", headers).unwrap().cell
}

/// Returns a runner's token with this text, whose checksum nobody looks at.
fn with_text(text: &str) -> String {
    format!("glrt-{}.01.000000000", URL_SAFE_NO_PAD.encode([&[7; 16], text.as_bytes(), &[16]].concat()))
}

#[test]
fn c13_a_runner_s_token_names_its_cell_or_none() {
    for (number, token) in TOKENS {
        let registered = token.replace("glrt-", "glrtr-");
        for header in ["RUNNER-TOKEN", "runner-token", "Runner-Token"] {
            assert_eq!(
                (cell(&[(header, token)]), cell(&[(header, &registered)])),
                (number, number),
                "{token}"
            );
        }
        assert_eq!(cell(&[("RUNNER-TOKEN", &runner_token(number, "glrt-", 5))]), number);
    }
    let two = TOKENS[1].1;
    // 300 characters are 225 bytes, of which 17 are no text.
    let padded = |bytes: usize| with_text(&format!("c:2\nx:{}", "0".repeat(bytes - 17 - "c:2\nx:".len())));
    assert_eq!(cell(&[("RUNNER-TOKEN", &padded(225))]), 2);
    assert!(padded(225).len() == "glrt-.01.000000000".len() + 300);
    for token in [
        "",
        "glrt-",
        "glrt-t1_A1FakeRunner0001",
        &two.replace("glrt-", "GLRT-"),
        &two.replace("glrt-", "xy-glrt-"),
        &two.replace(".01.", ".02."),
        &two.replace("AAEC", "AA+C"),
        two.strip_suffix(|_: char| true).unwrap(),
        &format!("{two}0"),
        &format!("{two} "),
        &padded(226),
        "glrt-AAECAwQFBgcICQoLDA0OD2M6Mg.01.000000000",
        &with_text("g:8\no:rz"),
        &with_text("c:2\nnothing"),
        &with_text("c:-2"),
        &with_text("c:A"),
        &with_text("C:2"),
        &with_text("c:zzzzzzzzzzzzzz"),
        "\u{e9}glrt-x",
    ] {
        assert_eq!(cell(&[("RUNNER-TOKEN", token)]), 1, "{token}");
    }
}

#[test]
fn c13_a_job_s_token_names_its_cell_or_none() {
    for (number, prefix) in [(1, ""), (2, "xy-"), (36, "a_b-c-")] {
        let token = job_token(number, prefix, 5);
        let basic = |user: &str| format!("Basic {}", STANDARD.encode(format!("{user}:{token}")));
        assert_eq!(cell(&[("Job-Token", &token)]), number);
        assert_eq!(cell(&[("authorization", &basic("gitlab-ci-token"))]), number);
        assert_eq!(cell(&[("authorization", &basic("someone"))]), 1);
    }
    let token = |claims: &str| format!("glcbt-e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
    assert_eq!(cell(&[("JOB-TOKEN", &token(r#"{"c":"2"}"#))]), 2);
    for text in [
        "glcbt-64_fakejobtoken1001abcdef".to_owned(),
        token(r#"{"p":"5"}"#),
        token(r#"{"c":2}"#),
        token("garbage"),
        token(r#"["c"]"#),
        token(r#"{"c":"2"}"#).replace("glcbt", "GLCBT"),
        token(r#"{"c":"2"}"#) + ".more",
        format!("xy{}", token(r#"{"c":"2"}"#)),
        "glcbt-a.%%%.c".to_owned(),
        "glcbt-..".to_owned(),
    ] {
        assert_eq!(cell(&[("JOB-TOKEN", &text)]), 1, "{text}");
    }
    for header in ["Bearer x", "Basic %%%", "Basic", ""] {
        assert_eq!(cell(&[("Authorization", header)]), 1, "{header}");
    }
}

#[test]
fn c13_the_order_of_the_rules_and_cells_that_are_not_here() {
    let (one, two, far) = (TOKENS[0].1, TOKENS[1].1, job_token(36, "", 1));
    assert_eq!(cell(&[("JOB-TOKEN", &far), ("RUNNER-TOKEN", two)]), 2, "the runner's token comes first");
    assert_eq!(
        cell(&[("JOB-TOKEN", &far), ("RUNNER-TOKEN", "glrt-old")]),
        36,
        "one without a cell is passed over"
    );
    let twice = rules().choose("/", &[("runner-token", two), ("RUNNER-TOKEN", one)]).unwrap();
    assert_eq!(twice, Choice { cell: 2, repeated: Some("RUNNER-TOKEN") });
    let by_path =
        |headers: &[(&str, &str)]| rules().choose("/cell-2/group/project.git", headers).unwrap().cell;
    assert_eq!((by_path(&[]), by_path(&[("RUNNER-TOKEN", one)])), (2, 1), "a token is preferred to the path");
    let unknown = job_token(7, "", 1);
    assert_eq!(cell(&[("JOB-TOKEN", &unknown)]), 1);
    let strict = Rules { refuses_unknown: true, ..rules() };
    assert_eq!(strict.choose("/", &[("JOB-TOKEN", &unknown)]), Err(UnknownCell(7)));
}

#[test]
fn mistakes_in_the_options_of_the_router_are_told() {
    let good = "--listen 127.0.0.1:0 --cell 1=http://a:1 --cell 2=http://b/x/ --path /two/=2 --default 1";
    let parse = |text: &str| Options::parse(&text.split(' ').collect::<Vec<_>>());
    assert!(parse(good).is_ok() && parse(&format!("{good} --unknown-cell 404")).is_ok());
    for (more, told) in [
        ("--cell", "--cell: a value must follow"),
        ("--cell 3", "not N=URL"),
        ("--cell x=http://c", "a cell is a decimal number"),
        ("--cell -3=http://c", "a cell is a decimal number"),
        ("--cell =http://c", "a cell is a decimal number"),
        ("--cell 2=http://c", "cell 2 is there already"),
        ("--cell 3=ftp://c", "not http://HOST:PORT"),
        ("--cell 3=https://c", "this router speaks no TLS"),
        ("--cell 3=http://", "not http://HOST:PORT"),
        ("--default 9", "cell 9 is named, but has no --cell 9=URL"),
        ("--path two=2", "not /PREFIX=N"),
        ("--path /two=9", "cell 9 is named"),
        ("--listen here", "not ADDRESS:PORT"),
        ("--unknown-cell 5", "neither `default` nor `404`"),
        ("--other 1", "--other: no such option"),
    ] {
        let wrong = parse(&format!("{good} {more}")).unwrap_err();
        assert!(wrong.contains(told), "{more}: {wrong}");
    }
    for (text, told) in [
        ("--listen 127.0.0.1:0 --cell 1=http://a", "--default is missing"),
        ("--cell 1=http://a --default 1", "--listen is missing"),
    ] {
        assert!(parse(text).unwrap_err().contains(told), "{text}");
    }
}

/// A router before two cells whose every byte a test has in its hands.
struct Bare {
    cells: [TcpListener; 2],
    router: CellRouter,
    reports: mpsc::Receiver<Exchange>,
}

/// Starts a router before cells at these addresses.
fn router_before(urls: [String; 2]) -> (CellRouter, mpsc::Receiver<Exchange>) {
    let [one, two] = urls;
    let (one, two) = (format!("1={one}"), format!("2={two}"));
    let words = ["--listen", "127.0.0.1:0", "--cell", &one, "--cell", &two, "--default", "1"];
    let options = Options::parse(&words).unwrap();
    let (send, reports) = mpsc::channel();
    let send = std::sync::Mutex::new(send);
    let listener = TcpListener::bind(options.listen).unwrap();
    let router = CellRouter::start(listener, options.routes, move |exchange| {
        send.lock().unwrap().send(exchange).ok();
    });
    (router, reports)
}

/// Returns the address of a server that listens here.
fn url(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

impl Bare {
    fn new() -> Self {
        let cells = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (router, reports) = router_before([url(&cells[0]), url(&cells[1])]);
        Self { cells, router, reports }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(self.router.url().replace("http://", "")).unwrap())
    }

    /// Waits for the router's connection to a cell, and for the head of a request.
    fn accept(&self, cell: usize) -> (BufReader<TcpStream>, String) {
        let mut stream = BufReader::new(self.cells[cell - 1].accept().unwrap().0);
        let head = head(&mut stream);
        (stream, head)
    }
}

/// Reads a head.
fn head(stream: &mut BufReader<TcpStream>) -> String {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut text).unwrap() > 0, "the end after {text:?}");
    }
    text
}

/// Reads exactly this text.
#[track_caller]
fn expect(stream: &mut BufReader<TcpStream>, wanted: &str) {
    let mut found = vec![0; wanted.len()];
    stream.read_exact(&mut found).unwrap();
    assert_eq!(String::from_utf8_lossy(&found), wanted);
}

fn send(stream: &BufReader<TcpStream>, text: &str) {
    stream.get_ref().write_all(text.as_bytes()).unwrap();
}

#[test]
fn bodies_pass_the_router_as_they_come_in_both_directions() {
    let bare = Bare::new();
    let mut client = bare.connect();
    let token = TOKENS[1].1;
    send(
        &client,
        &format!(
            "POST /a?b=c HTTP/1.1\r\nHost: gitlab.test\r\nrunner-token: {token}\r\nX-Odd:  two  blanks\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        ),
    );
    let (mut cell, request) = bare.accept(2);
    assert!(request.starts_with("POST /a?b=c HTTP/1.1\r\nHost: gitlab.test\r\n"), "{request}");
    for line in [
        &format!("runner-token: {token}"),
        "X-Odd:  two  blanks",
        "Expect: 100-continue",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: gitlab.test",
    ] {
        assert!(request.contains(&format!("{line}\r\n")), "{line:?} is not in {request}");
    }
    send(&cell, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
    // Each piece arrives before the next one is sent.
    for piece in ["5\r\nfirst\r\n", "6;x=y\r\nsecond\r\n"] {
        send(&client, piece);
        expect(&mut cell, piece);
    }
    // An answer can begin before the request has ended.
    send(&cell, "HTTP/1.1 201 Made\r\nX-Ticket: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let answer = head(&mut client);
    assert!(
        answer.starts_with("HTTP/1.1 201 Made\r\nX-Ticket: a\r\n") && answer.contains("keep-alive"),
        "{answer}"
    );
    send(&client, "0\r\nTrailer: t\r\n\r\n");
    expect(&mut cell, "0\r\nTrailer: t\r\n\r\n");
    for piece in ["3\r\none\r\n", "0\r\n\r\n"] {
        send(&cell, piece);
        expect(&mut client, piece);
    }
    // The same connection carries a request for another cell.
    send(&client, "GET /next HTTP/1.1\r\nHost: gitlab.test\r\n\r\n");
    let (cell, request) = bare.accept(1);
    assert!(request.starts_with("GET /next ") && !request.contains("runner-token"), "{request}");
    send(&cell, "HTTP/1.1 200 OK\r\n\r\nuntil the end");
    drop(cell);
    assert!(head(&mut client).contains("Connection: close"));
    expect(&mut client, "until the end");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let reported: Vec<(u64, u16)> =
        bare.reports.iter().take(2).map(|report| (report.cell, report.status)).collect();
    assert_eq!(reported, [(2, 201), (1, 200)]);
}

#[test]
fn a_cell_that_is_down_is_told_and_no_other_one_is_asked() {
    let one = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = Port::new();
    let (router, reports) = router_before([url(&one), nobody.url()]);
    let bare = |text: String| {
        let mut client = TcpStream::connect(router.url().replace("http://", "")).unwrap();
        client.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let to_two = format!("RUNNER-TOKEN: {}\r\n", TOKENS[1].1);
    let answer = bare(format!("POST /a HTTP/1.1\r\n{to_two}{to_two}Content-Length: 4\r\n\r\nbody"));
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("cell 2 is not reached"), "{answer}");
    let noted = reports.recv().unwrap();
    assert!(noted.note.unwrap().contains("RUNNER-TOKEN came more than once"));
    assert_eq!(reports.recv().unwrap().status, 503);
    for text in
        ["nonsense\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"]
    {
        assert!(bare(text.to_owned()).starts_with("HTTP/1.1 400 "), "{text}");
    }
    let closing = std::thread::spawn(move || {
        // It reads the request, and ends without an answer.
        let mut cell = BufReader::new(one.accept().unwrap().0);
        head(&mut cell);
        one
    });
    assert!(bare("GET / HTTP/1.1\r\n\r\n".to_owned()).starts_with("HTTP/1.1 502 "));
    let one = closing.join().unwrap();
    one.set_nonblocking(true).unwrap();
    assert!(one.accept().is_err(), "cell 1 was asked once, for its own request");
}

#[test]
fn a_client_that_goes_ends_its_request_at_the_cell() {
    let bare = Bare::new();
    let client = bare.connect();
    send(&client, "POST /held HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}");
    let (mut cell, _) = bare.accept(1);
    expect(&mut cell, "{}");
    drop(client);
    assert_eq!(cell.read(&mut [0]).unwrap(), 0);
}
