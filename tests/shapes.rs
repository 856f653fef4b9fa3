//! Sizes inferred from shapes, sets of gradients, ranges of parameters: what is taken and what is refused.

use backslang::Error;
use backslang::kernels::attention::{
    self, BackwardInputs, Gradient, Gradients, History, MAX_DIM, MAX_POSITION_DIM,
};
use backslang::kernels::mamba3::preprocess;

type Shapes = BackwardInputs<Vec<usize>>;

/// 5 rows of 6 heads on 7 pages of 4.
fn separate() -> Shapes {
    BackwardInputs {
        q: vec![5, 6, 8],
        history: History::Separate { k: vec![7, 4, 2, 8], v: vec![7, 4, 2, 3] },
        output_gradient: vec![5, 6, 3],
        statistics: None,
        output: None,
    }
}

fn latent() -> Shapes {
    BackwardInputs {
        q: vec![5, 6, 8],
        history: History::Latent {
            latent: vec![7, 4, 1, 8],
            q_position: vec![5, 6, 2],
            k_position: vec![7, 4, 1, 2],
        },
        output_gradient: vec![5, 6, 8],
        statistics: None,
        output: None,
    }
}

fn infer(shapes: &Shapes) -> backslang::Result<attention::Geometry> {
    attention::Geometry::of_backward(&shapes.as_ref().map(|_, shape| shape.as_slice()))
}

#[test]
fn attention_sizes_are_inferred() {
    let geometry = infer(&separate()).unwrap();
    let expected = attention::Geometry {
        queries: 5,
        heads: 6,
        kv_heads: 2,
        pages: 7,
        page_size: 4,
        key_dim: 8,
        value_dim: 3,
        position_dim: 0,
        statistics_columns: 0,
    };
    assert_eq!(geometry, expected);
    assert_eq!((geometry.group(), geometry.slots(), geometry.is_mla()), (3, 28, false));
    assert_eq!(geometry.gradient_shape(Gradient::Q), [5, 6, 8]);
    assert_eq!(geometry.gradient_shape(Gradient::K), [7, 4, 2, 8]);
    assert_eq!(geometry.gradient_shape(Gradient::V), [7, 4, 2, 3]);
    assert_eq!(geometry.statistics_shape(), [5, 6, 3]);

    let geometry = infer(&latent()).unwrap();
    let expected = attention::Geometry { kv_heads: 1, value_dim: 8, position_dim: 2, ..expected };
    assert_eq!(geometry, expected);
    assert_eq!((geometry.group(), geometry.is_mla()), (6, true));
    assert_eq!(geometry.gradient_shape(Gradient::Latent), [7, 4, 1, 8]);
    assert_eq!(geometry.gradient_shape(Gradient::QPosition), [5, 6, 2]);
    assert_eq!(geometry.gradient_shape(Gradient::KPosition), [7, 4, 1, 2]);
}

#[test]
fn optional_arrays_are_taken() {
    for columns in [2, 3] {
        let mut shapes = separate();
        shapes.statistics = Some(vec![5, 6, columns]);
        shapes.output = Some(vec![5, 6, 3]);
        assert_eq!(infer(&shapes).unwrap().statistics_columns, columns);
    }
}

#[test]
fn empty_axes_are_legal() {
    for axis in [0, 1] {
        let mut shapes = separate();
        (shapes.q[axis], shapes.output_gradient[axis]) = (0, 0);
        infer(&shapes).unwrap();
    }
    let mut shapes = separate();
    shapes.history = History::Separate { k: vec![0, 4, 2, 8], v: vec![0, 4, 2, 3] };
    infer(&shapes).unwrap();
}

/// Changes one array of a good call to `shape` and expects the message.
fn refused(mut shapes: Shapes, array: &str, shape: &[usize], message: &str) {
    match array {
        "statistics" => shapes.statistics = Some(vec![]),
        "output" => shapes.output = Some(vec![]),
        _ => {}
    }
    let shapes = shapes.map(|name, own| if name == array { shape.to_vec() } else { own });
    let error = infer(&shapes).unwrap_err();
    assert!(error.is_input());
    assert_eq!(error.to_string(), message);
}

#[test]
fn attention_shapes_that_disagree_are_refused() {
    let disagree = |shapes: Shapes, array: &str, shape: &[usize], expected: &str| {
        let message = format!("array `{array}`: expected {expected}, found shape {shape:?}");
        refused(shapes, array, shape, &message);
    };
    disagree(separate(), "q", &[5, 6], "[queries, heads, key_dim]");
    disagree(separate(), "q", &[5, 6, 0], "a key_dim in 1..=1024");
    disagree(separate(), "q", &[5, 6, 1025], "a key_dim in 1..=1024");
    disagree(separate(), "q", &[5, 5, 8], "heads divisible by the 2 kv_heads of `k`");
    disagree(separate(), "k", &[7, 4, 2], "[pages, page_size, kv_heads, key_dim]");
    disagree(separate(), "k", &[7, 0, 2, 8], "a page_size ≥ 1");
    disagree(separate(), "k", &[7, 4, 2, 9], "[7, 4, 2, 8]");
    disagree(separate(), "v", &[7, 4, 8], "[pages, page_size, kv_heads, value_dim]");
    disagree(separate(), "v", &[7, 4, 2, 0], "a value_dim in 1..=1024");
    disagree(separate(), "v", &[7, 4, 2, 1025], "a value_dim in 1..=1024");
    disagree(separate(), "v", &[8, 4, 2, 3], "[7, 4, 2, 3]");
    disagree(separate(), "v", &[7, 4, 1, 3], "[7, 4, 2, 3]");
    disagree(separate(), "output_gradient", &[5, 6, 8], "[5, 6, 3]");
    disagree(separate(), "output", &[5, 6, 8], "[5, 6, 3]");
    disagree(separate(), "statistics", &[5, 6], "[queries, heads, 2 or 3]");
    disagree(separate(), "statistics", &[5, 6, 4], "[queries, heads, 2 or 3]");
    disagree(separate(), "statistics", &[5, 6, 0], "[queries, heads, 2 or 3]");
    disagree(separate(), "statistics", &[6, 5, 3], "[5, 6, 3]");
    disagree(latent(), "latent", &[7, 4, 1, 7], "[7, 4, 1, 8]");
    disagree(latent(), "latent", &[7, 4, 8], "[pages, page_size, kv_heads, key_dim]");
    let one_head = "one key/value head, [pages, page_size, 1, key_dim]";
    disagree(latent(), "latent", &[7, 4, 2, 8], one_head);
    disagree(latent(), "q_position", &[5, 6, 3], "[5, 6, 2]");
    disagree(latent(), "k_position", &[7, 4, 2], "[pages, page_size, 1, position_dim]");
    disagree(latent(), "k_position", &[7, 4, 1, 0], "a position_dim in 1..=256");
    disagree(latent(), "k_position", &[7, 4, 1, 257], "a position_dim in 1..=256");
    disagree(latent(), "k_position", &[7, 5, 1, 2], "[7, 4, 1, 2]");
    disagree(latent(), "output_gradient", &[5, 6, 7], "[5, 6, 8]");
}

#[test]
fn the_largest_dimensions_are_taken() {
    let mut shapes = separate();
    shapes.q[2] = MAX_DIM;
    shapes.output_gradient[2] = MAX_DIM;
    shapes.history = History::Separate { k: vec![7, 4, 2, MAX_DIM], v: vec![7, 4, 2, MAX_DIM] };
    infer(&shapes).unwrap();
    let mut shapes = latent();
    shapes.history = History::Latent {
        latent: vec![7, 4, 1, 8],
        q_position: vec![5, 6, MAX_POSITION_DIM],
        k_position: vec![7, 4, 1, MAX_POSITION_DIM],
    };
    infer(&shapes).unwrap();
}

#[test]
fn sizes_beyond_the_index_type_are_refused() {
    let mut shapes = separate();
    let history = |pages, page_size| History::Separate {
        k: vec![pages, page_size, 2, 8],
        v: vec![pages, page_size, 2, 3],
    };
    // More elements than that are in several bindings.
    shapes.history = history(1 << 20, 1 << 8);
    assert_eq!(infer(&shapes).unwrap().pages, 1 << 20);
    shapes.history = history(1 << 20, 1 << 11);
    let message = "rows of the cache (slots · kv_heads): 4294967296 does not fit \
                   the kernels' 32-bit indices (at most 4294967295)";
    assert_eq!(infer(&shapes).unwrap_err().to_string(), message);
    shapes.history = history(usize::MAX, usize::MAX);
    assert!(matches!(infer(&shapes), Err(Error::TooLarge { what: "pages", .. })));
    // Nothing in it, and still not to be indexed.
    (shapes.q[1], shapes.output_gradient[1]) = (0, 0);
    shapes.history = History::Separate { k: vec![0, 1 << 33, 2, 8], v: vec![0, 1 << 33, 2, 3] };
    assert!(matches!(infer(&shapes), Err(Error::TooLarge { .. })));
}

#[test]
fn forward_sizes_are_those_of_the_backward() {
    for shapes in [separate(), latent()] {
        let forward =
            attention::ForwardInputs { q: shapes.q.clone(), history: shapes.history.clone() };
        let found =
            attention::Geometry::of_forward(&forward.as_ref().map(|_, shape| shape.as_slice()));
        assert_eq!(found.unwrap(), infer(&shapes).unwrap());
    }
    let forward = attention::ForwardInputs { q: vec![5, 6, 9], history: separate().history };
    let found = attention::Geometry::of_forward(&forward.as_ref().map(|_, s| s.as_slice()));
    let message = "array `k`: expected [7, 4, 2, 9], found shape [7, 4, 2, 8]";
    assert_eq!(found.unwrap_err().to_string(), message);
}

#[test]
fn gradient_lists_parse() {
    let parse = |list: &str| list.parse::<Gradients>();
    assert_eq!(parse("all").unwrap(), Gradients::ALL);
    assert_eq!(parse(" all ").unwrap(), Gradients::ALL);
    assert_eq!(parse("v,q").unwrap(), Gradients::only(&[Gradient::Q, Gradient::V]));
    assert_eq!(parse(" k , k ").unwrap(), Gradients::only(&[Gradient::K]));
    for gradient in Gradient::ALL {
        let set = parse(gradient.name()).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [gradient]);
        assert_eq!(gradient.output_name(), format!("{}_gradient", gradient.name()));
        assert_eq!(set.any_history(), gradient.is_history());
        assert_eq!(set.any_query(), !gradient.is_history());
    }
    let message =
        "`gradients`: expected `all` or a list of q, k, v, q_position, latent, k_position";
    for (list, found) in [("q,kv", "kv"), ("Q", "Q"), ("q,all", "all"), ("q k", "q k")] {
        assert_eq!(parse(list).unwrap_err().to_string(), format!("{message}, found {found}"));
    }
}

#[test]
fn sets_resolve_to_what_exists() {
    let mla = |set: Gradients| set.resolve(|gradient| gradient.exists(true));
    let separate = |set: Gradients| set.resolve(|gradient| gradient.exists(false));
    let history = |set: Gradients| set.resolve(|g| g.exists(false) && g.is_history());
    let members = |set: backslang::Result<Gradients>| set.unwrap().iter().collect::<Vec<_>>();
    use Gradient::{K, KPosition, Latent, Q, QPosition, V};
    assert_eq!(members(separate(Gradients::ALL)), [Q, K, V]);
    assert_eq!(members(mla(Gradients::ALL)), [Q, QPosition, Latent, KPosition]);
    assert_eq!(members(history(Gradients::ALL)), [K, V]);
    assert_eq!(members(mla(Gradients::only(&[KPosition, Q]))), [Q, KPosition]);
    for (result, message) in [
        (separate(Gradients::only(&[K, Latent])), "q, k, v, found latent"),
        (mla(Gradients::only(&[V])), "q, q_position, latent, k_position, found v"),
        (history(Gradients::only(&[K, Q])), "k, v, found q"),
        (separate(Gradients::only(&[])), "q, k, v, found an empty list"),
        (separate("".parse().unwrap()), "q, k, v, found an empty list"),
        (separate(" , ".parse().unwrap()), "q, k, v, found an empty list"),
    ] {
        let message = format!("`gradients`: expected `all` or a list of {message}");
        assert_eq!(result.unwrap_err().to_string(), message);
    }
}

fn sizes() -> preprocess::Geometry {
    preprocess::Geometry {
        leading: vec![2, 3],
        rows: 6,
        inner_size: 4,
        bc_rows: 3,
        state_size: 5,
        heads: 7,
        rope_angles: 2,
    }
}

fn infer_mamba(
    shapes: &preprocess::BackwardInputs<Vec<usize>>,
) -> backslang::Result<preprocess::Geometry> {
    preprocess::Geometry::of_backward(&shapes.as_ref().map(|_, shape| shape.as_slice()))
}

#[test]
fn preprocess_sizes_are_inferred() {
    let sizes = sizes();
    assert_eq!(sizes.projected_width(), 8 + 30 + 21 + 2);
    let slices = sizes.slices();
    let found = slices.named().map(|(_, range)| (range.start, range.end)).collect::<Vec<_>>();
    let expected = [(0, 4), (4, 8), (8, 23), (23, 38), (38, 45), (45, 52), (52, 59), (59, 61)];
    assert_eq!(found, expected);
    assert_eq!(infer_mamba(&sizes.backward_inputs()).unwrap(), sizes);
    for leading in [vec![], vec![4], vec![0], vec![2, 0, 3]] {
        let rows = leading.iter().product();
        let sizes = preprocess::Geometry { leading, rows, ..sizes.clone() };
        assert_eq!(infer_mamba(&sizes.backward_inputs()).unwrap(), sizes);
    }
    let outputs = sizes.backward_outputs();
    assert_eq!(outputs.projected_gradient, [2, 3, 61]);
    assert_eq!((outputs.dt_bias_partial, outputs.dt_bias_gradient), (vec![2, 3, 7], vec![7]));
    let outputs = sizes.forward_outputs();
    assert_eq!(
        (outputs.bh, outputs.dt, outputs.angle),
        (vec![2, 3, 3, 5], vec![2, 3, 7], vec![2, 3, 2])
    );
}

#[test]
fn preprocess_shapes_that_disagree_are_refused() {
    let refused = |array: &str, shape: &[usize], expected: &str| {
        let shapes = sizes().backward_inputs();
        let shapes = shapes.map(|name, own| if name == array { shape.to_vec() } else { own });
        let message = format!("array `{array}`: expected {expected}, found shape {shape:?}");
        assert_eq!(infer_mamba(&shapes).unwrap_err().to_string(), message);
    };
    refused("projected", &[], "[…rows, projected_width]");
    let asked = |width: usize, heads: usize| {
        format!(
            "[2, 3, {width}], as inner_size 4, bc_rows 3, state_size 5, heads {heads} and \
             rope_angles 2 ask for"
        )
    };
    refused("projected", &[2, 3, 60], &asked(61, 7));
    refused("dt_bias", &[7, 1], "[heads]");
    refused("dt_gradient", &[2, 3, 8], "[2, 3, 7]");
    refused("adt_gradient", &[2, 7], "[2, 3, 7]");
    refused("trap_gradient", &[3, 2, 7], "[2, 3, 7]");
    refused("x_gradient", &[2, 3, 5], "[2, 3, 4]");
    refused("ch_gradient", &[2, 3, 5, 3], "[2, 3, 3, 5]");
    let leading = |words: &str| format!("{words} with the leading axes [2, 3] of `projected`");
    refused("z_gradient", &[6, 4], &leading("[…rows, inner_size]"));
    refused("bh_gradient", &[2, 3, 15], &leading("[…rows, bc_rows, state_size]"));
    refused("angle_gradient", &[3, 2, 2], &leading("[…rows, rope_angles]"));
    refused("angle_gradient", &[], "[…rows, rope_angles]");

    // Which of the sizes is wrong cannot be known: the message tells them all.
    let mut shapes = sizes().backward_inputs();
    shapes.dt_bias = vec![6];
    let message = format!("array `projected`: expected {}, found shape [2, 3, 61]", asked(58, 6));
    assert_eq!(infer_mamba(&shapes).unwrap_err().to_string(), message);
}

#[test]
fn forward_widths_are_checked() {
    let infer = |projected: &[usize], inner_size| {
        let widths = preprocess::Widths { inner_size, bc_rows: 3, state_size: 5, rope_angles: 2 };
        let shapes = preprocess::ForwardInputs { projected, dt_bias: &[7] };
        preprocess::Geometry::of_forward(&shapes, &widths)
    };
    assert_eq!(infer(&[2, 3, 61], 4).unwrap(), sizes());
    let message = "array `projected`: expected [2, 3, 63], as inner_size 5, bc_rows 3, \
                   state_size 5, heads 7 and rope_angles 2 ask for, found shape [2, 3, 61]";
    assert_eq!(infer(&[2, 3, 61], 5).unwrap_err().to_string(), message);
    assert!(infer(&[], 4).is_err());
    assert!(matches!(infer(&[2, 3, 61], usize::MAX), Err(Error::TooLarge { .. })));
}

#[test]
fn preprocess_sizes_beyond_the_index_type_are_refused() {
    let infer = |leading: Vec<usize>, inner_size| {
        let rows = leading.iter().fold(1, |n, &axis| usize::saturating_mul(n, axis));
        let sizes = preprocess::Geometry { leading, rows, inner_size, ..sizes() };
        infer_mamba(&sizes.backward_inputs()).unwrap_err()
    };
    let error = infer(vec![1 << 16, 1 << 16], 4);
    assert!(matches!(error, Error::TooLarge { what: "rows", .. }));
    let error = infer(vec![usize::MAX, usize::MAX], 4);
    assert!(matches!(error, Error::TooLarge { what: "rows", .. }));
    let error = infer(vec![0], 1 << 31);
    assert!(matches!(error, Error::TooLarge { what: "columns of `projected`", .. }));
    let sizes = preprocess::Geometry { bc_rows: 1 << 33, state_size: 0, ..sizes() };
    let error = infer_mamba(&sizes.backward_inputs()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "bc_rows", .. }));
    // More elements than that are in several bindings.
    let sizes = preprocess::Geometry { leading: vec![1 << 31], rows: 1 << 31, ..self::sizes() };
    assert_eq!(infer_mamba(&sizes.backward_inputs()).unwrap(), sizes);
}

#[test]
fn parameters_keep_to_their_ranges() {
    let defaults = preprocess::Parameters::default();
    defaults.check().unwrap();
    let with = |change: fn(&mut preprocess::Parameters, f32), value| {
        let mut parameters = defaults;
        change(&mut parameters, value);
        parameters.check().map_err(|error| error.to_string())
    };
    let epsilon = |value| with(|p, value| p.epsilon = value, value);
    let a_floor = |value| with(|p, value| p.a_floor = value, value);
    for value in [0.0, -0.0, -1e-5, f32::NAN, f32::INFINITY] {
        let message = format!("`epsilon`: expected a finite number > 0, found {value}");
        assert_eq!(epsilon(value).unwrap_err(), message);
    }
    for value in [-1e-9, f32::NAN, f32::INFINITY] {
        let message = format!("`a_floor`: expected a finite number ≥ 0, found {value}");
        assert_eq!(a_floor(value).unwrap_err(), message);
    }
    epsilon(f32::MIN_POSITIVE).unwrap();
    a_floor(0.0).unwrap();
    for (dt_min, dt_max) in [(0.0, f32::INFINITY), (0.0, 0.0), (0.5, 0.5), (-0.0, 0.1)] {
        preprocess::Parameters { dt_min, dt_max, ..defaults }.check().unwrap();
    }
    for (dt_min, dt_max) in [(0.2, 0.1), (-0.1, 0.1), (f32::NAN, 0.1), (0.1, f32::NAN)] {
        let message = format!(
            "`dt_min and dt_max`: expected 0 ≤ dt_min ≤ dt_max, \
             found dt_min = {dt_min} and dt_max = {dt_max}"
        );
        let error = preprocess::Parameters { dt_min, dt_max, ..defaults }.check().unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn groups_of_tensors_keep_names_and_order() {
    type Group<T> = preprocess::BackwardOutputs<T>;
    assert_eq!(Group::<()>::NAMES, ["projected_gradient", "dt_bias_partial", "dt_bias_gradient"]);
    let group = Group::try_build(|name| Ok::<_, ()>(name.len())).unwrap();
    assert!(group.named().map(|(name, &length)| (name, length)).eq([
        ("projected_gradient", 18),
        ("dt_bias_partial", 15),
        ("dt_bias_gradient", 16),
    ]));
    assert_eq!(group.map(|name, length| name.len() - length), Group::<usize>::default());
    let failed = group.try_map(|name, n| if n == 15 { Err(name) } else { Ok(n) });
    assert_eq!(failed.unwrap_err(), "dt_bias_partial");
    assert_eq!(*group.as_ref().dt_bias_gradient, 16);
}
