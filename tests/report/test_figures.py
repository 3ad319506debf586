"""Figures show the given numbers, SVG files combine on one page, and heat maps show the weights."""

import math
import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from report_examples import history, peaked, picture

from winnow.errors import DataError
from winnow.report import metric_bars, overlay, run_curves, save, save_explanation, svg, training_curves
from winnow.report.heatmaps import FULL_SCALE, is_uniform, relative_weights
from winnow.report.style import INK, MUTED, PRETRAINED, dark_color, method_color, method_colors

RESULTS = {
    "average pooling": [{"MAP@R": 0.1, "P@1": 0.2}, {"MAP@R": 0.2, "P@1": 0.25}],
    "GSP": [{"MAP@R": 0.3, "P@1": 0.5}, {"MAP@R": 0.5, "P@1": 0.6}],
}


def texts(figure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg(figure))


def brightness(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L"), dtype=np.float64)


def test_bars_are_means_with_deviations_and_seeds():
    (axes,) = metric_bars(RESULTS, baseline=("untrained", {"MAP@R": 0.05, "P@1": 0.04})).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([5, 4, 15, 22.5, 40, 55])
    segments = [line.get_segments()[0][:, 1] for line in axes.collections]
    middle = np.std([30, 50], ddof=1)
    assert any(np.allclose(ends, [40 - middle, 40 + middle]) for ends in segments)
    assert len(segments) == 4
    dots = [
        sorted(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "None" and len(line.get_ydata()) == 2
    ]
    assert [30, 50] in [pytest.approx(pair) for pair in dots]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["MAP@R", "P@1"]


def test_a_single_seed_has_no_deviation():
    (axes,) = metric_bars({"GSP": [{"MAP@R": 0.3}]}).axes
    assert not axes.collections
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([30])


def test_training_curves_show_every_seed_and_their_mean():
    figure = training_curves({"average pooling": [history(0.2), history(0.4)], "GSP": [history(0.8)]})
    main, first_loss, second_loss = figure.axes
    values = [list(line.get_ydata()) for line in main.lines]
    assert [value[-1] for value in values] == pytest.approx([20, 40, 30, 80])
    widths = [line.get_linewidth() for line in main.lines]
    assert widths[0] == widths[1] < widths[2] == widths[3]
    assert list(main.lines[2].get_xdata()) == [0, 10, 20, 30, 40]
    assert list(first_loss.lines[0].get_xdata()) == [10, 20, 30, 40]
    assert list(second_loss.lines[0].get_ydata()) == pytest.approx([2, 1, 2 / 3, 0.5])
    assert {"average pooling", "GSP", "training step", "training loss"} <= set(texts(figure))


def test_seeds_of_other_lengths_have_their_mean_where_all_are():
    figure = training_curves({"GSP": [history(0.2, steps=4), history(0.4, steps=2)]})
    mean = figure.axes[0].lines[2]
    assert list(mean.get_xdata()) == [0, 10, 20]
    assert list(mean.get_ydata()) == pytest.approx([1, (5 + 20) / 2, (10 + 40) / 2])


def test_names_at_the_ends_do_not_overlap():
    figure = training_curves({name: [history(0.5)] for name in "abcd"})
    heights = sorted(note.xy[1] for note in figure.axes[0].texts)
    low, high = figure.axes[0].get_ylim()
    assert np.diff(heights).min() > 0.07 * (high - low)
    assert heights[-1] <= high


def test_many_methods_with_long_names_still_fit():
    figure = training_curves({f"a method with a long name {k}": [history(0.1 * k)] for k in range(1, 8)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where the layout does not fit
        svg(figure)
    widths = [axes.get_position().width for axes in figure.axes]
    assert len(widths) == 8
    assert min(widths) > 0.15
    assert {f"a method w…ng name {k}" for k in range(1, 8)} <= set(texts(figure))


def test_a_run_shows_its_best_step():
    entries = history(0.4)
    entries[2]["val/MAP@R"] = 0.9
    loss, val = run_curves(entries).axes
    assert list(loss.lines[0].get_xdata()) == [10, 20, 30, 40]
    assert list(val.lines[0].get_xdata()) == [0, 10, 20, 30, 40]
    assert "best: 90.0% at step 20" in texts(run_curves(entries))


def test_learning_rate_is_drawn_where_it_changes() -> None:
    entries = [{"step": step, "loss": 1.0, "val/MAP@R": 0.5, "lr": 1e-4 * (3 - step)} for step in range(3)]
    *_, rate = run_curves(entries).axes
    assert len(run_curves(entries).axes) == 3
    assert list(rate.lines[0].get_ydata()) == [entry["lr"] for entry in entries]
    assert len(run_curves([{**entry, "lr": 1e-4} for entry in entries]).axes) == 2


def test_the_mark_of_the_best_step_is_not_cut_off():
    figure = run_curves([{"step": step, "val/MAP@R": 0.7 + 0.001 * step} for step in range(0, 100, 10)])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    mark = axes.lines[-1]
    centre = axes.transData.transform(mark.get_xydata()[0])[1]
    assert centre + mark.get_markersize() / 2 * figure.dpi / 72 < axes.bbox.y1


def test_a_run_without_validation_or_with_holes():
    only_loss = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}, {"step": 3, "loss": 1.0}]
    (axes,) = run_curves(only_loss).axes
    assert list(axes.lines[0].get_xdata()) == [1, 3]
    (axes,) = run_curves([{"step": 0, "seconds": 0.0, "val/MAP@R": 0.1}]).axes
    assert list(axes.lines[0].get_ydata()) == pytest.approx([10])


def test_nothing_to_draw_is_said():
    with pytest.raises(DataError, match="Pass "):
        run_curves([])
    with pytest.raises(DataError, match="Pass "):
        training_curves({"GSP": [[{"step": 1, "loss": 1.0}]]})
    with pytest.raises(DataError, match="Pass "):
        metric_bars({"GSP": [{"R@1": 0.1}]})


def test_curves_of_averaged_weights_show_the_weights_too() -> None:
    entries = [
        {"step": step, "val/MAP@R": 0.5 + step / 100, "raw/MAP@R": 0.4 + step / 100} for step in range(0, 30, 10)
    ]
    (axes,) = run_curves(entries).axes
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert list(lines["weights"]) == pytest.approx([40.0, 50.0, 60.0])
    assert list(lines["averaged weights"]) == pytest.approx([50.0, 60.0, 70.0])


def test_svg_is_the_same_every_time_and_loads_nothing():
    figures = [metric_bars(RESULTS), training_curves({"GSP": [history(0.3)]}), run_curves(history(0.3))]
    sources = [svg(figure) for figure in figures]
    assert sources == [svg(figure) for figure in figures]
    assert sources[0] == svg(metric_bars(RESULTS))
    for source in sources:
        root = ElementTree.fromstring(source)
        ids = {one.get("id") for one in root.iter() if one.get("id")}
        used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', source)
        assert used
        assert {one or other for one, other in used} <= ids
        assert not re.search(r'(href|src)="(?!#)', source)
        assert not re.search(r"\d{4}-\d\d-\d\d", source)


def luminance(color: str) -> float:
    channels = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_color_of_a_figure_has_contrast_in_light_and_dark():
    names = ["GAP", "GMP (projected)", "GSP", "GSP + ZSR", *"abc"]
    for color in (*method_colors(names).values(), INK, MUTED):
        for ground in ("#ffffff", "#f7f7f5"):
            assert contrast(color, ground) >= 4.5
        for ground in ("#13171c", "#1c2229"):
            assert contrast(dark_color(color), ground) >= 4.5
    assert contrast(PRETRAINED, "#f7f7f5") >= 3
    assert contrast(dark_color(PRETRAINED), "#1c2229") >= 3


def test_dark_mode_replaces_every_color_that_a_figure_draws():
    figure = metric_bars(RESULTS | {"GSP + ZSR": [{"MAP@R": 0.3}]}, baseline=("pretrained", {"MAP@R": 0.1}))
    body = svg(figure).partition("</style>")[2]
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body))
    assert len(drawn) >= 6
    assert all(dark_color(color) != color for color in drawn)


def test_text_of_figures_is_text_and_escaped():
    found = texts(metric_bars({"<script>$x$": [{"MAP@R": 0.1}]}))
    assert "&lt;script&gt;$x$" in found


def test_drawing_leaves_the_callers_settings_alone():
    import matplotlib

    matplotlib.use("pdf")
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        loud = svg(metric_bars(RESULTS))
        assert dict(matplotlib.rcParams) == before
    assert loud == svg(metric_bars(RESULTS))


def test_methods_have_their_color_by_name():
    fixed = {"GAP": "#52606d", "GMP (projected)": "#b85000", "GSP": "#0072b2", "GSP + ZSR": "#007a59"}
    assert {name: method_color(name) for name in fixed} == fixed
    assert method_color("gsp-zsr") == method_color("GSP+ZSR")
    assert method_color("DeLF") == method_color("GAP")
    for names in (["a", "GSP", "b", "GAP"], [f"m{k}" for k in range(7)], ["GSP + ZSR", "GAP"]):
        colors = method_colors(names)
        assert list(colors) == names
        assert len(set(colors.values())) == len(names)
        assert {name: colors[name] for name in names if name in fixed} == {k: v for k, v in fixed.items() if k in names}


def test_figures_are_saved_by_the_ending(tmp_path):
    figure = run_curves(history(0.3))
    save(figure, tmp_path / "deep" / "curves.png")
    save(figure, tmp_path / "again.png")
    assert (tmp_path / "deep" / "curves.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    with Image.open(tmp_path / "again.png") as image:
        assert image.width > 600
    save(figure, tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    with pytest.raises(DataError, match=r"curves\.doc"):
        save(figure, tmp_path / "curves.doc")


@pytest.mark.parametrize("size", [(64, 48), (31, 77)])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_overlay_is_hot_where_the_weights_are(size, mode):
    gray = Image.new("RGB", size, (128, 128, 128)).convert(mode)
    weights = peaked()
    result = overlay(gray, weights)
    assert result.size == size
    assert result.mode == "RGB"
    light = brightness(result)
    rows, columns = (np.array([1, 3]) * size[1] / 6).astype(int), (np.array([5, 7]) * size[0] / 8).astype(int)
    inside = light[rows[0] + 1 : rows[1] - 1, columns[0] + 1 : columns[1] - 1]
    corner = light[-size[1] // 3 :, : size[0] // 3]
    assert inside.mean() > corner.mean() + 60
    y, x = (places.mean() for places in np.nonzero(light == light.max()))
    assert abs(y + 0.5 - 2 * size[1] / 6) < 1
    assert abs(x + 0.5 - 6 * size[0] / 8) < 1


def test_hotter_is_brighter_all_along_the_scale_and_no_further():
    gray = Image.new("RGB", (4, 4), (128, 128, 128))
    light = [brightness(overlay(gray, np.full((2, 2), k / 4), uniform=1.0)).mean() for k in range(17)]
    assert np.all(np.diff(light) > 0)
    top = [overlay(gray, np.full((2, 2), k), uniform=1.0).tobytes() for k in (FULL_SCALE, FULL_SCALE + 3)]
    assert top[0] == top[1]


def test_constant_weights_give_an_even_overlay_whatever_their_size():
    gray = Image.new("RGB", (40, 30), (90, 120, 200))
    pixels = np.asarray(overlay(gray, np.full((5, 7), 1 / 35)))
    assert (pixels == pixels[0, 0]).all()
    assert overlay(gray, np.full((3, 3), 0.7)).tobytes() == overlay(gray, np.full((5, 7), 1 / 35)).tobytes()


def test_the_image_shows_through():
    image = Image.new("RGB", (20, 20), "black")
    image.paste("white", (10, 0, 20, 20))
    light = brightness(overlay(image, np.ones((4, 4))))
    assert light[:, 15].mean() > light[:, 5].mean() + 80


def test_the_scale_is_times_the_average():
    weights = np.array([[1.0, 3.0]])
    assert relative_weights(weights).tolist() == [[0.5, 1.5]]
    assert relative_weights(weights, uniform=0.5).tolist() == [[2.0, 6.0]]
    assert is_uniform(np.full((3, 3), 1 / 9))
    assert not is_uniform(peaked())
    for bad in (np.ones(4), np.ones((0, 2)), np.array([[1.0, -1.0]]), np.array([[np.nan]]), np.zeros((2, 2))):
        with pytest.raises(DataError, match="weights: expected"):
            relative_weights(bad)


@pytest.mark.slow
def test_an_explanation_holds_the_image_and_every_map(tmp_path):
    path = tmp_path / "new" / "explained.png"
    image = picture(3, (60, 60))
    save_explanation(path, image, {"GSP": peaked()})
    with Image.open(path) as one:
        narrow = one.size
    save_explanation(path, image, {"average pooling": np.ones((6, 8)), "GSP": peaked()})
    with Image.open(path) as two:
        assert two.width > 1.3 * narrow[0]
        assert two.height == narrow[1]
    save_explanation(path, image, {f"pooling {i}": peaked() for i in range(8)})
    with Image.open(path) as many:
        assert many.height > 1.8 * narrow[1]  # in two rows
    save_explanation(tmp_path / "explained.svg", image, {"GSP": peaked()})
    with pytest.raises(DataError, match="at least one heat map"):
        save_explanation(path, image, {})


def test_the_loss_of_zsr_is_drawn_beside_that_of_guessing():
    entries = [{**entry, "zsr": 5 - 0.1 * number, "zsr/guess": 4.3} if number else entry
               for number, entry in enumerate(history(0.3))]  # fmt: skip
    *_, axes = run_curves(entries).axes
    assert len(run_curves(entries).axes) == len(run_curves(history(0.3)).axes) + 1
    own, guess = axes.lines
    assert own.get_ydata()[0] == pytest.approx(4.9)
    assert set(guess.get_ydata()) == {4.3}


def test_the_test_curve_has_a_panel_of_its_own() -> None:
    entries = [
        {"step": step, "val/MAP@R": 0.5, "test/MAP@R": 0.3 + step / 100, "raw_test/MAP@R": 0.2 + step / 100}
        for step in range(0, 30, 10)
    ]
    val, test = run_curves(entries).axes
    assert "Validation" in val.get_title(loc="left")
    assert "not used for selection" in test.get_title(loc="left")
    lines = {line.get_label(): line.get_ydata() for line in test.get_lines()}
    assert list(lines["averaged weights"]) == pytest.approx([30.0, 40.0, 50.0])
    assert list(lines["weights"]) == pytest.approx([20.0, 30.0, 40.0])
