use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::*;
use crate::convert::to_text;
use crate::diagnostic::Position;
use crate::environment::Environment;
use crate::template::parse_inline;

fn template(text: &str) -> Template {
    parse_inline(text, &Arc::from("f.yml"), Position::START).unwrap()
}

fn secret(value: Value) -> Value {
    let mut value = value;
    value.mark_sensitive();
    value
}

fn number(number: f64) -> Value {
    Value::plain(Data::Number(number))
}

/// Returns `secret`, `plain`, and `mixed` with one member of each.
fn names() -> IndexMap<String, Value> {
    let mixed = IndexMap::from([
        ("secret".to_owned(), secret(Value::text("s"))),
        ("plain".to_owned(), Value::text("p")),
    ]);
    IndexMap::from([
        ("secret".to_owned(), secret(Value::text("s"))),
        ("plain".to_owned(), Value::text("p")),
        ("mixed".to_owned(), Value::object(mixed)),
        ("list".to_owned(), Value::array([number(1.0), secret(number(2.0))])),
    ])
}

fn evaluate(text: &str) -> Result<Value, Diagnostic> {
    evaluate_native(&template(&format!("${{{{ {text} }}}}")), &names())
}

fn shown(text: &str) -> String {
    evaluate(text).map_or_else(|error| error.message, |value| to_text(&value))
}

#[test]
fn results_are_sensitive_if_an_evaluated_operand_is() {
    for text in [
        "secret + plain",
        "secret == plain",
        "!secret",
        "str(mixed)",
        "bool(secret)",
        "\"a ${{ secret }}\"",
        "[plain, secret]",
        "{a: secret}",
        "{(secret): plain}",
        "{p: 1, s: 2}[secret]",
        "secret && plain",
        "mixed",
        "mixed.secret",
        "list[1]",
        "(secret && mixed).plain",
    ] {
        assert!(evaluate(text).unwrap().is_sensitive(), "{text}");
    }
    for text in
        ["plain || secret", "'' && secret", "mixed.plain", "list[0]", "[secret, plain][1]", "nope || plain"]
    {
        assert!(!evaluate(text).unwrap().is_sensitive(), "{text}");
    }
}

#[test]
fn not_found_errors_list_names_and_never_values() {
    let error = evaluate("mixed.secrt").unwrap_err();
    assert_eq!(
        error.to_string(),
        "f.yml:1:11: mixed.secrt: \"secrt\" was not found (did you mean \"secret\"?)"
    );
    let error = evaluate("mixed.zzz").unwrap_err();
    assert_eq!(error.to_string(), "f.yml:1:11: mixed.zzz: \"zzz\" was not found (known: plain, secret)");
    let error = evaluate("mixed[secret]").unwrap_err();
    assert_eq!(error.to_string(), "f.yml:1:11: mixed[secret]: the key was not found (known: plain, secret)");
    assert_eq!(evaluate("nosuch(1)").unwrap_err().help.as_deref(), Some("known: bool, num, str"));
}

#[test]
fn or_forgives_what_is_not_there_and_nothing_else() {
    assert_eq!(shown("nope || list[9] || mixed.no || 'd'"), "d");
    assert_eq!(shown("(nope && 1) || 'd'"), "d");
    assert_eq!(shown("(1 / 0) || 'd'"), "division by zero");
    assert_eq!(evaluate("'' || nope").unwrap_err().class, Class::NotFound);
}

#[test]
fn operators_refuse_other_types() {
    for text in [
        "'a' + 1",
        "-'a'",
        "-!1",
        "[1] + [2]",
        "null - 1",
        "str",
        "str == str",
        "str.a",
        "1(2)",
        "str()",
        "plain[0]",
        "list['a']",
        "list[0.5]",
        "mixed[1]",
        "num([])",
        "{a: str}",
    ] {
        assert_eq!(evaluate(text).unwrap_err().class, Class::Type, "{text}");
    }
    for text in ["list[-1]", "list[2]"] {
        assert_eq!(evaluate(text).unwrap_err().class, Class::NotFound, "{text}");
    }
    assert_eq!(evaluate("1e308 * 10").unwrap_err().class, Class::Type);
}

#[test]
fn signs_apply_from_the_inside() {
    assert_eq!(shown("--5"), "5");
    assert_eq!(shown("!!0"), "false");
    assert_eq!(shown("!-1"), "false");
    assert_eq!(shown("2 - -1"), "3");
    assert_eq!(shown("-0"), "-0");
}

#[test]
fn chains_compare_to_the_left() {
    assert_eq!(shown("1 < 2 == true"), "true");
    assert_eq!(shown("[1, [null]] == [1, [null]] && {} < {a: 1}"), "true");
    assert_eq!(shown("2 * 3 + 4 * 5 - 6 / 2"), "23");
}

#[test]
fn fault_67_one_expression_cannot_make_more_than_the_limit() {
    let names = IndexMap::from([("big".to_owned(), Value::text("x".repeat(1024 * 1024)))]);
    let text = format!("${{{{ [{}] }}}}", "big,".repeat(100));
    assert_eq!(evaluate_native(&template(&text), &names).unwrap_err().class, Class::Limit);
    let text = format!("${{{{ ''{} }}}}", " + big".repeat(100));
    assert_eq!(evaluate_native(&template(&text), &names).unwrap_err().class, Class::Limit);
    assert_eq!(evaluate_text(&template(&"${{big}}".repeat(100)), &names).unwrap_err().class, Class::Limit);
}

#[test]
fn a_chain_of_sums_pays_only_for_what_it_adds() {
    let names = IndexMap::from([("big".to_owned(), Value::text("x".repeat(8 * 1024 * 1024)))]);
    let text = format!("${{{{ big{} }}}}", " + 'y'".repeat(100));
    let Data::String(sum) = evaluate_native(&template(&text), &names).unwrap().data else { panic!("text") };
    assert_eq!(sum.len(), 8 * 1024 * 1024 + 100);
}

#[test]
fn fault_67_looking_at_values_is_paid_for() {
    let many = Value::array(vec![number(1.0); 100_000]);
    let names = IndexMap::from([("many".to_owned(), many)]);
    for (first, more) in [("many == many", " && many == many"), ("many", " && many"), ("!many", " || !many")]
    {
        let text = format!("${{{{ {first}{} }}}}", more.repeat(2_500));
        let error = evaluate_native(&template(&text), &names).unwrap_err();
        assert_eq!(error.class, Class::Limit, "{first}");
    }
}

#[test]
fn fault_76_all_keys_of_a_step_share_one_limit() {
    let half = "x".repeat(40 << 20);
    let names = IndexMap::from([("half".to_owned(), Value::text(half))]);
    let key = |name: &str| template(&format!("${{{{ half == '' && '' || '{name}' }}}}"));
    let long = |name: &str| template(&format!("${{{{ half + '' == '' && '' || '{name}' }}}}"));
    let env = |keys: Vec<Template>| {
        evaluate_env(&keys.into_iter().map(|key| (key, template("x"))).collect::<Vec<_>>(), &names)
    };
    assert_eq!(env(vec![key("a"), long("b")]).unwrap().len(), 2);
    assert_eq!(env(vec![long("a"), long("b")]).err().map(|error| error.class), Some(Class::Limit));
    let inputs =
        [(long("a"), TemplateValue::Text(template("x"))), (long("b"), TemplateValue::Text(template("x")))];
    assert_eq!(evaluate_inputs(&inputs, |_| None, &names).err().map(|error| error.class), Some(Class::Limit));
}

#[test]
fn fault_76_comparing_wide_objects_is_paid_for() {
    let wide = || {
        let members = (0..20_000).map(|n| (format!("key-{n}"), number(f64::from(n))));
        Value::object(members.collect())
    };
    // A value taken out of a marked one is marked too, which copies it.
    let outer = Value::object(IndexMap::from([("o".to_owned(), wide())])).data;
    let marked = Value { data: outer, sensitive: true };
    let names = [("a", wide()), ("b", wide()), ("s", marked)].map(|(name, value)| (name.to_owned(), value));
    let names = IndexMap::from(names);
    for (first, more) in
        [("a == b", " && a == b"), ("!(a < b)", " && !(a < b)"), ("s.o['key-1']", " + s.o['key-1']")]
    {
        let text = format!("${{{{ {first}{} }}}}", more.repeat(999));
        let error = evaluate_native(&template(&text), &names).err();
        assert_eq!(error.map(|error| error.class), Some(Class::Limit), "{first}");
    }
    let once = evaluate_native(&template("${{ a == b && !(a < b) && s.o['key-1'] == 1 }}"), &names).unwrap();
    assert!(matches!(once.data, Data::Bool(true)));
}

#[test]
fn what_is_forgiven_costs_no_search_for_the_name_that_was_meant() {
    let members = (0..200_000).map(|n| (format!("a_rather_long_name_of_a_member_{n}"), number(1.0)));
    let names = IndexMap::from([("o".to_owned(), Value::object(members.collect()))]);
    let text = format!("${{{{ {}'none' }}}}", "o.a_rather_long_name || ".repeat(2_700));
    assert!(evaluate_native(&template(&text), &names).unwrap() == Value::text("none"));
}

#[test]
fn fault_67_the_values_of_one_step_share_one_limit() {
    let names = IndexMap::from([("big".to_owned(), Value::text("x".repeat(1024 * 1024)))]);
    let inputs: Vec<_> =
        (0..100).map(|n| (template(&format!("i{n}")), TemplateValue::Text(template("${{ big }}")))).collect();
    assert_eq!(evaluate_inputs(&inputs, |_| None, &names).unwrap_err().class, Class::Limit);
    let env: Vec<_> = (0..100).map(|n| (template(&format!("E{n}")), template("${{ big }}"))).collect();
    assert_eq!(evaluate_env(&env, &names).unwrap_err().class, Class::Limit);
    let texts: Vec<_> = (0..100).map(|_| template("${{ big }}")).collect();
    assert_eq!(evaluate_texts(&texts, &names).unwrap_err().class, Class::Limit);
}

/// Runs `work` on a stack as small as the daemon's. Unoptimised frames are about five times as large as released ones.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    thread.spawn(work).unwrap().join().unwrap();
}

#[test]
fn fault_67_the_longest_and_deepest_expressions_need_little_stack() {
    on_a_small_stack(|| {
        let scope = || {
            let deep = (0..127).fold(Value::text("x"), |inner, _| Value::array([inner]));
            IndexMap::from([("d".to_owned(), deep), ("s".to_owned(), Value::text("s"))])
        };
        let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(128), close.repeat(128));
        let long = |first: &str, more: &str| format!("{first}{}", more.repeat(60_000 / more.len()));
        for text in [
            nested("(", ")"),
            nested("[", "]"),
            nested("{a: ", "}"),
            nested("str(", ")"),
            nested("\"${{ ", " }}\""),
            nested("1 || 2 && 3 == 4 + 5 * (", ")"),
            nested("!-(", ")"),
            nested("d[", "]"),
            long("1", " + 1"),
            long("1", " || 1"),
            long("s", " + 's'"),
            long("s", ".s"),
            long("d", "[0]"),
            long("s", "(s)"),
            format!("{}1", "!".repeat(60_000)),
            format!("[{}]", "d,".repeat(20_000)),
            format!("{{{}}}", "a: d, ".repeat(10_000)),
            "d == d && d <= d && str(d) != '' && {a: d} == {a: d}".to_owned(),
        ] {
            let Ok(parsed) = parse_inline(&format!("${{{{ {text} }}}}"), &Arc::from("f"), Position::START)
            else {
                panic!("not parsed: {}", text.chars().take(40).collect::<String>());
            };
            let copy = parsed.clone();
            assert!(copy == parsed);
            let (printed, debug) = (parsed.to_string(), format!("{parsed:?}"));
            assert!(printed.len() < 4 * text.len() + 20 && !debug.is_empty());
            if let Ok(value) = evaluate_native(&parsed, &scope()) {
                let json = crate::convert::to_json(&value);
                assert!(value.clone() == value && json == json.clone());
                assert!(!json.to_string().is_empty() && value.is_sensitive() == value.clone().is_sensitive());
            }
        }
    });
}

#[test]
fn fault_67_values_cannot_grow_deeper_from_step_to_step() {
    let mut value = number(1.0);
    let wrap = template("${{ [[[[[[[[x]]]]]]]] }}");
    for _ in 0..16 {
        value = evaluate_native(&wrap, &IndexMap::from([("x".to_owned(), value)])).unwrap();
    }
    let error = evaluate_native(&wrap, &IndexMap::from([("x".to_owned(), value)])).unwrap_err();
    assert_eq!(error.class, Class::Limit);
    // The value around a template counts too.
    let deep = |text: &str| {
        let innermost = TemplateValue::Text(template(text));
        (0..128).fold(innermost, |inner, _| TemplateValue::Array(vec![inner], Position::START))
    };
    assert!(evaluate_value(&deep("${{ 'x' }}"), None, &names()).is_ok());
    assert_eq!(evaluate_value(&deep("${{ list }}"), None, &names()).unwrap_err().class, Class::Limit);
}

#[test]
fn white_space_around_a_single_expression_is_ignored_for_other_types_than_text() {
    let value = TemplateValue::Text(template("${{ list }}\n"));
    let evaluated = |declared| evaluate_value(&value, declared, &names()).unwrap().type_name();
    assert_eq!(evaluated(Some(ValueType::Array)), "array");
    assert_eq!(evaluated(Some(ValueType::String)), "string");
    assert_eq!(evaluated(None), "string");
}

#[test]
fn computed_keys_are_names_and_differ() {
    let inputs = |key: &str| {
        let value = || TemplateValue::Constant(number(1.0));
        evaluate_inputs(&[(template("p"), value()), (template(key), value())], |_| None, &names())
    };
    assert_eq!(inputs("x${{ plain }}").unwrap().keys().collect::<Vec<_>>(), ["p", "xp"]);
    assert_eq!(inputs("${{ plain }}").unwrap_err().class, Class::Name);
    assert_eq!(inputs("${{ plain }} ").unwrap_err().class, Class::Name);
    assert_eq!(inputs("${{ 1 }}").unwrap_err().class, Class::Type);
}

#[test]
fn marked_numbers_that_become_text_are_noted() {
    let environment = Environment::new(Arc::new(Vec::new()), IndexMap::new());
    let marked = |data| Value { data, sensitive: true };
    let vars = IndexMap::from([
        ("PIN".to_owned(), marked(Data::String("007".to_owned()))),
        ("n".to_owned(), marked(Data::Number(3.0))),
        ("list".to_owned(), marked(Data::Array([number(4.0), Value::text("x")].into()))),
        ("plain".to_owned(), number(5.0)),
    ]);
    let noted = |text: &str| {
        let numbers = RefCell::default();
        let (none, steps) = (IndexMap::new(), Steps::new());
        let context = Context {
            env: &environment,
            vars: &vars,
            inputs: &none,
            steps: &steps,
            ahead: StepsAhead::default(),
            run: None,
            matrix: None,
            func_dir: "",
            work_dir: "",
            output_file: "",
            export_file: "",
            files_used: Cell::new(false),
            numbers: &numbers,
        };
        evaluate_native(&template(text), &context).unwrap();
        numbers.take()
    };
    for (text, expected) in [
        ("pin=${{ num(vars.PIN) }}", &[7.0][..]),
        ("${{ str(vars.n * 2) + \"x\" }}", &[6.0]),
        ("${{ {a: [str([vars.n, vars.plain])]} }}", &[3.0]),
        ("${{ \"v=${{ vars.list }}\" }}", &[4.0]),
        ("${{ vars.n * 2 }}", &[]),
        ("port=${{ vars.n == 3 && 8080 || 80 }} ${{ {(vars.PIN): [1], port: 2} }}", &[]),
        ("${{ vars.PIN }} ${{ vars.plain }} ${{ bool(vars.n) }}", &[]),
    ] {
        assert_eq!(noted(text), expected, "{text}");
    }
}

#[test]
fn the_context_shows_the_names_of_an_invocation_and_nothing_else() {
    let environment =
        Environment::new(Arc::new(Vec::new()), IndexMap::from([("HOME".to_owned(), "/h".to_owned())]));
    let vars = IndexMap::from([("V".to_owned(), Value::text("v"))]);
    let inputs = IndexMap::from([("n".to_owned(), number(3.0))]);
    let steps =
        Steps::from([("one".to_owned(), EndedStep::plain(IndexMap::from([("o".to_owned(), number(42.0))])))]);
    let numbers = RefCell::default();
    let context = Context {
        env: &environment,
        vars: &vars,
        inputs: &inputs,
        steps: &steps,
        ahead: StepsAhead::default(),
        run: None,
        matrix: None,
        func_dir: "/f",
        work_dir: "/w",
        output_file: "/o",
        export_file: "/e",
        files_used: Cell::new(false),
        numbers: &numbers,
    };
    let text =
        |text: &str| evaluate_text(&template(text), &context).map_or_else(|e| e.to_string(), |t| t.text);
    assert_eq!(text("${{ env.HOME }}${{ vars.V + job.V }}${{ inputs.n }}"), "/hvv3");
    assert_eq!(text("${{ steps.one.outputs.o }}${{ steps }}"), "42{\"one\": {\"outputs\": {\"o\": 42}}}");
    assert_eq!(text("${{ func_dir }}${{ step_dir }}${{ work_dir }}${{ env }}"), "/f/f/w{\"HOME\": \"/h\"}");
    assert_eq!(
        text("${{ steps.one.exports }}"),
        "f.yml:1:15: steps.one.exports: \"exports\" was not found (known: outputs)"
    );
    assert!(!context.files_used.get());
    assert_eq!(text("${{ output_file }}"), "/o");
    assert!(context.files_used.get());
}
