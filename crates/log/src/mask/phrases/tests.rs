use super::super::config::{DefaultPrefixes, MaskLimits};
use super::*;
use crate::mask::{MaskStream, Masker};

const NOTHING: [&str; 0] = [];

fn with_limits(limits: MaskLimits) -> MaskConfig {
    MaskConfig { limits, default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() }
}

fn prepare<P: AsRef<[u8]>>(
    phrases: impl IntoIterator<Item = P>,
    config: &MaskConfig,
) -> Result<(PhraseSet, Vec<MaskWarning>), MaskLimitError> {
    PhraseSet::prepare(phrases, NOTHING, config)
}

/// `count` different phrases of `length` bytes.
fn numbered(count: usize, length: usize) -> Vec<String> {
    (0..count).map(|n| format!("{n:08}{}", "x".repeat(length - 8))).collect()
}

#[test]
fn fault_36_phrases_are_trimmed_and_empty_and_equal_ones_dropped() {
    let list = ["", " ", "wren", "\u{a0}wren\u{2003}\r\n", "\u{85}tit ", "a b"];
    let (set, warnings) = prepare(list, &MaskConfig::default()).unwrap();
    assert_eq!(set.inner.phrases, [b"wren".to_vec(), b"tit".to_vec(), b"a b".to_vec()]);
    assert_eq!(warnings, []);
}

#[test]
fn the_defaults_are_those_of_the_specification() {
    let limits = MaskLimits::default();
    assert_eq!(
        (limits.phrases, limits.phrase_bytes, limits.all_phrase_bytes, limits.all_form_bytes),
        (4096, 262_144, 4_194_304, 16_777_216)
    );
    assert_eq!((limits.prefixes, limits.prefix_bytes), (256, 256));
}

#[test]
fn fault_40_the_number_of_phrases_is_limited() {
    let config = MaskConfig { forms: false, ..MaskConfig::default() };
    for count in [4095, 4096] {
        assert_eq!(prepare(numbered(count, 8), &config).unwrap().0.len(), count);
    }
    let error = prepare(numbered(4097, 8), &config).unwrap_err();
    assert_eq!(error, MaskLimitError::TooManyPhrases { count: 4097, limit: 4096 });
    // Duplicates and blank ones do not count.
    let list = numbered(4096, 8).into_iter().chain(numbered(4096, 8)).chain([" ".to_owned()]);
    assert!(prepare(list, &config).is_ok());
}

#[test]
fn fault_40_the_length_of_a_phrase_is_limited_after_trimming() {
    let config = MaskConfig { forms: false, ..MaskConfig::default() };
    for length in [256 * 1024 - 1, 256 * 1024] {
        assert!(prepare([format!(" {} ", "x".repeat(length))], &config).is_ok());
    }
    let error = prepare(["short".to_owned(), "x".repeat(256 * 1024 + 1)], &config).unwrap_err();
    assert_eq!(error, MaskLimitError::PhraseTooLong { number: 2, length: 262_145, limit: 262_144 });
    assert!(!error.to_string().contains("xx"));
}

#[test]
fn fault_40_the_length_of_all_phrases_is_limited() {
    let config = MaskConfig { forms: false, ..MaskConfig::default() };
    let list = |last: usize| {
        let mut list = numbered(15, 256 * 1024);
        list.extend(numbered(1, 256 * 1024 - 1));
        list.push("x".repeat(last));
        list
    };
    assert!(prepare(numbered(15, 256 * 1024).into_iter().chain(numbered(1, 262_143)), &config).is_ok());
    assert!(prepare(list(1), &config).is_ok());
    let error = prepare(list(2), &config).unwrap_err();
    assert_eq!(error, MaskLimitError::PhrasesTooLarge { length: 4_194_305, limit: 4_194_304 });
}

#[test]
fn the_number_of_prefixes_is_limited_with_the_defaults() {
    let prepare = |count, config: &MaskConfig| PhraseSet::prepare(NOTHING, numbered(count, 8), config);
    let all = MaskConfig::default();
    assert!(prepare(241, &all).is_ok());
    assert!(prepare(242, &all).is_ok());
    let error = prepare(243, &all).unwrap_err();
    assert_eq!(error, MaskLimitError::TooManyPrefixes { count: 257, limit: 256 });
    let none = MaskConfig { default_prefixes: DefaultPrefixes::None, ..all };
    assert!(prepare(256, &none).is_ok());
    assert!(prepare(257, &none).is_err());
}

#[test]
fn the_length_of_a_prefix_is_limited() {
    let prepare = |length| PhraseSet::prepare(NOTHING, ["y".repeat(length)], &MaskConfig::default());
    assert!(prepare(255).is_ok());
    assert!(prepare(256).is_ok());
    let error = prepare(257).unwrap_err();
    assert_eq!(error, MaskLimitError::PrefixTooLong { number: 1, length: 257, limit: 256 });
}

#[test]
fn as_many_prefixes_as_there_may_be_are_all_searched_for() {
    let prefixes = numbered(242, 256);
    let (set, _) = PhraseSet::prepare(NOTHING, &prefixes, &MaskConfig::default()).unwrap();
    let masker = Masker::compile(&set);
    for prefix in prefixes.iter().map(String::as_str).chain(["glpat-", "_gitlab_session="]) {
        let text = format!("{}{prefix}K9", ".".repeat(500));
        assert_eq!(masker.mask(&text).into_data(), format!("{}{prefix}[MASKED]", ".".repeat(500)));
        let mut stream = MaskStream::new(Arc::clone(&masker));
        let mut out = Vec::new();
        text.as_bytes().chunks(7).for_each(|write| stream.push(write, &mut out));
        stream.finish(&mut out);
        assert!(out.ends_with(b"[MASKED]"));
    }
}

#[test]
fn fault_40_encoded_forms_of_the_longest_phrases_are_dropped_when_there_is_no_room() {
    let phrases = ["short/secret", "a longer/secret\nof two lines", "the longest/secret of them all, by far"];
    let everything = prepare(phrases, &with_limits(MaskLimits::default())).unwrap().0;
    let size: usize = everything.forms().iter().map(Vec::len).sum();
    let at = |all_form_bytes| {
        let limits = MaskLimits { all_form_bytes, ..MaskLimits::default() };
        prepare(phrases, &with_limits(limits)).unwrap()
    };
    for room in [size, size + 1] {
        let (set, warnings) = at(room);
        assert_eq!((set.forms(), warnings), (everything.forms(), vec![]));
    }
    let (set, warnings) = at(size - 1);
    assert_eq!(warnings, [MaskWarning::FormsDropped { phrases: 1 }]);
    assert!(warnings[0].is_for_job());
    let masker = Masker::compile(&set);
    assert_eq!(masker.mask(phrases[2]).into_data(), "[MASKED]");
    assert_eq!(masker.mask("the%20longest%2Fsecret").into_data(), "the%20longest%2Fsecret");
    assert_eq!(masker.mask("a%20longer%2Fsecret%0Aof%20two%20lines").into_data(), "[MASKED]");

    // The groups *raw* and *lines* stay, however little room there is.
    let (set, warnings) = at(0);
    assert_eq!(warnings, [MaskWarning::FormsDropped { phrases: 3 }]);
    let masker = Masker::compile(&set);
    for phrase in phrases.iter().copied().chain(["a longer/secret\r\nof two lines", "of two lines"]) {
        assert_eq!(masker.mask(phrase).into_data(), "[MASKED]");
    }
}

#[test]
fn phrases_without_other_forms_are_not_counted_as_dropped() {
    let limits = MaskLimits { all_form_bytes: 8, ..MaskLimits::default() };
    assert_eq!(prepare(["wren", "lark"], &with_limits(limits)).unwrap().1, []);
}

#[test]
fn fault_36_one_byte_phrases_are_accepted_with_a_warning() {
    let (set, warnings) = prepare(["Z", " Y "], &MaskConfig::default()).unwrap();
    assert_eq!((set.len(), warnings.as_slice()), (2, &[MaskWarning::OneBytePhrases { count: 2 }][..]));
    assert!(!warnings[0].is_for_job(), "the job's log shows what is hidden anyway");
}

#[test]
fn fault_38_warnings_and_debug_output_count_phrases_and_show_none() {
    let (set, warnings) = prepare(["Z", "swordfish"], &MaskConfig::default()).unwrap();
    assert_eq!(format!("{set:?}"), "PhraseSet { phrases: 2, .. }");
    assert_eq!(
        warnings[0].to_string(),
        "phrases of a single byte to mask: 1; such a byte is hidden wherever it stands"
    );
    assert_eq!(
        MaskWarning::FormsDropped { phrases: 3 }.to_string(),
        "encoded forms of the longest phrases (3 of them) are not masked: all forms together are too large"
    );
    assert_eq!(prepare(NOTHING, &MaskConfig::default()).unwrap().0.len(), 0);
}

#[test]
fn known_phrases_add_nothing() {
    let (set, _) = prepare(["wren", "lark"], &MaskConfig::default()).unwrap();
    assert!(Arc::ptr_eq(&set.with_added([" lark "]).unwrap().0.inner, &set.inner));
    let (more, _) = set.with_added(["tit"]).unwrap();
    assert!(!Arc::ptr_eq(&more.inner, &set.inner));
    assert_eq!(Masker::compile(&more).mask("wren lark tit").into_data(), "[MASKED] [MASKED] [MASKED]");
}
