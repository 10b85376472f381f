//! Tests the rewriting of schemas, and that cleaning or restricting twice equals doing it once.

use super::*;
use proptest::prelude::*;
use serde_json::{Value as Any, json};

fn read(text: &str) -> JsonDocument<'_> {
    JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()).unwrap()
}

fn clean(schema: &Any, vendor: SchemaTarget) -> (Any, Option<String>, bool) {
    let text = schema.to_string();
    let tree = read(&text);
    let CleanedSchema {
        json,
        note,
        rewritten,
    } = clean_schema(Some(tree.root()), vendor).unwrap();
    (serde_json::from_str(&json).unwrap(), note, rewritten)
}

#[test]
fn a_schema_that_fits_is_the_senders_own() {
    let text = r#"{ "type":"object", "properties": {"$id":{"type":"string","default":{"required":null}}} }"#;
    let tree = read(text);
    for vendor in [SchemaTarget::Messages, SchemaTarget::Chat] {
        let cleaned = clean_schema(Some(tree.root()), vendor).unwrap();
        assert!(matches!(cleaned.json, Cow::Borrowed(json) if json == text));
    }
    assert_eq!(
        clean_for_messages(None).unwrap().json,
        r#"{"type":"object","properties":{}}"#
    );
    assert_eq!(
        clean_for_chat(None).unwrap().json,
        r#"{"type":"object","properties":{}}"#
    );
}

#[test]
fn what_a_messages_vendor_minds_is_removed() {
    let input = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "required": null,
        "properties": {"a": {"type": "object", "required": null}, "$schema": {"type": "string"}}
    });
    let expected = json!({"type": "object", "properties": {"a": {"type": "object"}, "$schema": {"type": "string"}}});
    assert_eq!(
        clean(&input, SchemaTarget::Messages),
        (expected, None, false)
    );
    let listed = clean(&json!({"type": ["object", "null"]}), SchemaTarget::Messages);
    assert_eq!(listed.0, json!({"type": "object"}));
}

#[test]
fn what_a_chat_vendor_misses_is_put_in() {
    let input = json!({
        "$schema": "x",
        "properties": {
            "list": {"type": ["array", "null"]},
            "map": {"type": "object", "additionalProperties": {"type": "array"}},
            "any": {"anyOf": [{"type": "object"}, {"type": "string"}]}
        }
    });
    let expected = json!({
        "type": "object",
        "properties": {
            "list": {"type": ["array", "null"], "items": {}},
            "map": {"type": "object", "additionalProperties": {"type": "array", "items": {}}, "properties": {}},
            "any": {"anyOf": [{"type": "object", "properties": {}}, {"type": "string"}]}
        }
    });
    assert_eq!(clean(&input, SchemaTarget::Chat).0, expected);
    assert_eq!(
        clean(&json!({}), SchemaTarget::Chat).0,
        json!({"type": "object", "properties": {}})
    );
}

#[test]
fn only_objects_are_parameters() {
    for schema in [
        json!({"type": "string"}),
        json!({"type": ["array", "null"]}),
        json!(true),
        json!([]),
    ] {
        let text = schema.to_string();
        assert!(
            clean_for_messages(Some(read(&text).root())).is_err(),
            "{text}"
        );
        assert!(clean_for_chat(Some(read(&text).root())).is_err(), "{text}");
    }
}

#[test]
fn all_of_is_merged() {
    let input = json!({
        "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
        "allOf": [
            {"$ref": "#/$defs/Base"},
            {"properties": {"a": {"minLength": 1}, "c": {"type": "null"}}, "required": ["c", "a"]},
            {"if": {"required": ["c"]}, "then": {"required": ["b"]}}
        ],
        "$defs": {"Base": {"type": "object", "properties": {"b": {"type": "number"}}, "description": "Base."}}
    });
    let (json, note, rewritten) = clean(&input, SchemaTarget::Messages);
    assert_eq!(
        json,
        json!({
            "type": "object", "description": "Base.",
            "properties": {
                "a": {"allOf": [{"type": "string"}, {"minLength": 1}]},
                "b": {"type": "number"},
                "c": {"type": "null"}
            },
            "required": ["a", "c"],
            "$defs": input["$defs"]
        })
    );
    let left = r#"All of these must hold: [{"if":{"required":["c"]},"then":{"required":["b"]}}]"#;
    assert_eq!(note.as_deref(), Some(left));
    assert!(rewritten);
}

#[test]
fn alternatives_become_a_note_and_their_properties_stay() {
    let branches = json!([
        {"type": "object", "properties": {"kind": {"const": "a"}, "x": {}}, "required": ["kind", "x"]},
        {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        {"type": "null"}
    ]);
    let (json, note, rewritten) = clean(&json!({"anyOf": branches}), SchemaTarget::Messages);
    let properties = json!({"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "x": {}});
    assert_eq!(
        json,
        json!({"type": "object", "properties": properties, "required": ["kind"]})
    );
    assert_eq!(
        note,
        Some(format!("At least one of these must hold: {branches}"))
    );
    assert!(rewritten);
    let input = json!({
        "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]
    });
    let (json, note, _) = clean(&input, SchemaTarget::Chat);
    assert_eq!(
        json,
        json!({"type": "object", "properties": input["properties"]})
    );
    let described = r#"Exactly one of these must hold: [{"required":["a"]},{"required":["b"]}]"#;
    assert_eq!(note.as_deref(), Some(described));
    let long = json!({"anyOf": [{"description": "é".repeat(2000)}]});
    assert_eq!(
        clean(&long, SchemaTarget::Chat).1.unwrap().chars().count(),
        1000 + 33
    );
}

fn restrict(schema: &Any) -> Option<Any> {
    Some(serde_json::from_str(&restrict_for_messages(&schema.to_string())?).unwrap())
}

#[test]
fn the_strict_mode_gets_what_it_knows_and_is_told_the_rest() {
    let input = json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "description": "How many."},
            "when": {"type": "string", "format": "date"},
            "id": {"type": "string", "format": "byte", "pattern": "^a b$"},
            "tags": {"type": "array", "items": {"oneOf": [{"type": "string"}, {"const": null}]}, "minItems": 2},
            "none": {"type": "array", "items": {"$ref": "#/$defs/P"}, "minItems": 0, "default": null}
        },
        "required": ["n"],
        "$defs": {"P": {"type": "object", "properties": {"minimum": {"type": "string"}}}}
    });
    let expected = json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "How many.\n\n{minimum: 1}"},
            "when": {"type": "string", "format": "date"},
            "id": {"type": "string", "description": "{format: \"byte\", pattern: \"^a b$\"}"},
            "tags": {
                "type": "array", "items": {"anyOf": [{"type": "string"}, {"const": null}]},
                "description": "{minItems: 2}"
            },
            "none": {
                "type": "array", "items": {"$ref": "#/$defs/P"}, "minItems": 0, "description": "{default: null}"
            }
        },
        "required": ["n"],
        "$defs": {
            "P": {"type": "object", "properties": {"minimum": {"type": "string"}}, "additionalProperties": false}
        },
        "additionalProperties": false
    });
    let text = r#"{"type":"integer","minimum":1,"maximum":5,"description":"How many."}"#;
    let described = r#"{"type":"integer","description":"How many.\n\n{minimum: 1, maximum: 5}"}"#;
    assert_eq!(restrict_for_messages(text).as_deref(), Some(described));
    assert_eq!(restrict(&input), Some(expected));
}

#[test]
fn what_leads_back_or_is_open_cannot_be_strict() {
    for schema in [
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}}),
        json!({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"items": {"$ref": "#/$defs/A"}}}}}}),
        json!({"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}}),
        json!({"properties": {"a": {"type": "object", "additionalProperties": true}}}),
        json!({"items": {"additionalProperties": {"type": "string"}}}),
        json!({"patternProperties": {"^x": {}}}),
        json!({"properties": {"a": {"$ref": "https://example.com/schema.json"}}}),
    ] {
        assert_eq!(restrict(&schema), None, "{schema}");
    }
    let twice = json!({
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}},
        "additionalProperties": false, "$defs": {"A": {"type": "string"}}
    });
    assert_eq!(restrict(&twice), Some(twice));
}

#[test]
fn a_chat_vendors_strict_mode_wants_everything_closed_and_required() {
    let strict = |schema: Any| is_strict_for_chat(read(&schema.to_string()).root());
    let closed = json!({
        "type": "object", "additionalProperties": false, "required": ["a", "b"],
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"type": "array", "items": {"$ref": "#/$defs/P"}}
        },
        "$defs": {"P": {"type": "object", "properties": {}, "additionalProperties": false}}
    });
    assert!(strict(closed.clone()));
    for (position, value) in [
        ("/additionalProperties", json!(true)),
        ("/required", json!(["a"])),
        ("/properties/a", json!({})),
        ("/properties/a", json!({"type": "string", "default": "x"})),
        ("/properties/a", json!({"oneOf": [{"type": "string"}]})),
        ("/$defs/P", json!({"type": "object"})),
    ] {
        let mut other = closed.clone();
        *other.pointer_mut(position).unwrap() = value;
        assert!(!strict(other), "{position}");
    }
    assert!(!strict(json!({"anyOf": [closed]})));
}

/// Generates schemas, not all of them valid.
fn schemas() -> impl Strategy<Value = Any> {
    let kinds = vec!["object", "array", "string", "number", "null"];
    let leaf = prop_oneof![
        proptest::sample::select(kinds).prop_map(|kind| json!({ "type": kind })),
        Just(json!({})),
        Just(json!(null)),
        Just(json!({"$ref": "#/$defs/A"})),
        Just(json!({"required": null, "$schema": "x", "$id": "y", "default": {"$id": 1}})),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let keys = [
            "properties",
            "$defs",
            "items",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "additionalProperties",
        ];
        let member = (
            proptest::sample::select(keys.to_vec()),
            proptest::collection::vec(inner, 1..4),
        );
        proptest::collection::vec(member, 1..4).prop_map(|members| {
            let value = |(key, values): (&str, Vec<Any>)| {
                let value = match key {
                    "properties" | "$defs" => Any::Object(
                        ["A", "required", "$id"]
                            .map(str::to_owned)
                            .into_iter()
                            .zip(values)
                            .collect(),
                    ),
                    "anyOf" | "oneOf" | "allOf" => Any::Array(values),
                    _ => values.into_iter().next().unwrap_or_default(),
                };
                (key.to_owned(), value)
            };
            Any::Object(members.into_iter().map(value).collect())
        })
    })
}

proptest! {
    #[test]
    fn cleaning_twice_is_cleaning_once(schema in schemas()) {
        let text = schema.to_string();
        let tree = read(&text);
        for vendor in [SchemaTarget::Messages, SchemaTarget::Chat] {
            let Ok(once) = clean_schema(Some(tree.root()), vendor) else { continue };
            let reparsed = JsonDocument::parse(&once.json, 200, NodeBuffer::new()).unwrap();
            let twice = clean_schema(Some(reparsed.root()), vendor).unwrap();
            prop_assert!(matches!(twice.json, Cow::Borrowed(_)), "{}", once.json);
            prop_assert!(!twice.rewritten && twice.note.is_none());
        }
    }

    #[test]
    fn restricting_twice_is_restricting_once(schema in schemas()) {
        if let Some(once) = restrict_for_messages(&schema.to_string()) {
            prop_assert_eq!(restrict_for_messages(&once), Some(once));
        }
    }
}

/// References can repeat the same schemas, and their targets can be large: each is visited once.
#[test]
fn a_schema_of_many_references_is_not_read_for_ever() {
    let many = |name: &str| vec![json!({"$ref": format!("#/$defs/{name}")}); 5_000];
    let wide: serde_json::Map<_, _> = (0..10_000)
        .map(|number| (format!("x{number}"), json!(0)))
        .collect();
    for schema in [
        json!({"anyOf": many("A"), "$defs": {"A": {"allOf": many("B")}, "B": {"required": ["x"]}}}),
        json!({"anyOf": many("A"), "$defs": {"A": wide}}),
        json!({"allOf": many("A"), "$defs": {"A": {"allOf": [{"$ref": "#/$defs/B"}]}, "B": wide}}),
    ] {
        let (began, text) = (std::time::Instant::now(), schema.to_string());
        let tree = read(&text);
        assert!(
            clean_schema(Some(tree.root()), SchemaTarget::Messages)
                .unwrap()
                .rewritten
        );
        // It used to take half a minute. A slow day is ten times slower than this machine.
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
