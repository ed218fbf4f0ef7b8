// Drawing loss.svg.
#include "train/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/text.h"
#include "checkpoint/file.h"

namespace moetrain {
namespace {

constexpr double kWidth = 800, kHeight = 420;
constexpr double kLeft = 64, kRight = 16, kTop = 36, kBottom = 44;
constexpr size_t kSpans = 600;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  }
};

/// Mean and range of the losses of a span of steps; `step` is its middle.
struct Span {
  double step = 0, mean = 0, low = 0, high = 0;
};

std::vector<Span> spans_of(const std::vector<LossPoint>& points) {
  std::vector<Span> spans;
  const size_t size = std::max<size_t>(1, (points.size() + kSpans - 1) / kSpans);
  for (size_t i = 0; i < points.size(); i += size) {
    const size_t end = std::min(points.size(), i + size);
    Span span;
    Range range;
    double sum = 0, count = 0;
    for (size_t k = i; k < end; ++k) {
      range.include(points[k].loss);
      if (!std::isfinite(points[k].loss)) continue;
      sum += points[k].loss;
      ++count;
    }
    span.step = 0.5 * static_cast<double>(points[i].step + points[end - 1].step);
    span.mean = count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
    span.low = range.low;
    span.high = range.high;
    spans.push_back(span);
  }
  return spans;
}

/// A round distance that puts about five ticks into `width`.
double tick_distance(double width) {
  const double raw = width / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (raw <= m * power) return m * power;
  }
  return 10 * power;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

/// From data to picture coordinates.
struct Axes {
  Range x, y;
  double at_x(double v) const {
    return kLeft + (v - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  double at_y(double v) const {
    return kHeight - kBottom - (v - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
  std::string point(double step, double loss) const {
    return cat(number(at_x(step)), ",", number(at_y(loss)));
  }
};

std::string draw_frame(const Axes& axes) {
  std::string svg;
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  const double dy = tick_distance(axes.y.high - axes.y.low);
  for (double v = std::ceil(axes.y.low / dy) * dy; v <= axes.y.high; v += dy) {
    const std::string y = number(axes.at_y(v));
    svg += cat("<line class=\"grid\" x1=\"", kLeft, "\" y1=\"", y, "\" x2=\"", right, "\" y2=\"", y,
               "\"/><text x=\"", kLeft - 6, "\" y=\"", y, "\" text-anchor=\"end\" dy=\"4\">",
               number(std::fabs(v) < dy * 1e-6 ? 0 : v), "</text>\n");
  }
  const double dx = tick_distance(axes.x.high - axes.x.low);
  for (double v = std::ceil(axes.x.low / dx) * dx; v <= axes.x.high; v += dx) {
    svg += cat("<text x=\"", number(axes.at_x(v)), "\" y=\"", bottom + 16,
               "\" text-anchor=\"middle\">", number(v), "</text>\n");
  }
  svg += cat("<rect x=\"", kLeft, "\" y=\"", kTop, "\" width=\"", right - kLeft, "\" height=\"",
             bottom - kTop, "\" fill=\"none\" stroke=\"#888\"/>\n<text x=\"", (kLeft + right) / 2,
             "\" y=\"", kHeight - 8, "\" text-anchor=\"middle\">step</text>\n");
  return svg;
}

std::string draw_losses(const Axes& axes, const std::vector<Span>& spans) {
  std::string band, line, svg;
  bool pen_down = false;
  for (const Span& s : spans) {
    if (!std::isfinite(s.mean)) {
      pen_down = false;
      continue;
    }
    line += cat(pen_down ? " L" : " M", axes.point(s.step, s.mean));
    pen_down = true;
    if (s.high > s.low) {
      band += cat(" M", axes.point(s.step, s.low), " L", axes.point(s.step, s.high));
    }
  }
  if (!band.empty()) svg += cat("<path class=\"band\" d=\"", band.substr(1), "\"/>\n");
  if (!line.empty()) svg += cat("<path class=\"loss\" d=\"", line.substr(1), "\"/>\n");
  return svg;
}

}  // namespace

std::string loss_curve_svg(const std::vector<LossPoint>& points, const std::string& title) {
  const std::vector<Span> spans = spans_of(points);
  Axes axes;
  double last = std::numeric_limits<double>::quiet_NaN();
  for (const LossPoint& p : points) {
    axes.x.include(static_cast<double>(p.step));
    axes.y.include(p.loss);
    if (p.validation) axes.y.include(*p.validation);
    if (std::isfinite(p.loss)) last = p.loss;
  }
  if (!(axes.x.low < axes.x.high)) {
    const double middle = std::isfinite(axes.x.low) ? axes.x.low : 0;
    axes.x = {middle, middle + 1};
  }
  if (!(axes.y.low < axes.y.high)) {
    const double middle = std::isfinite(axes.y.low) ? axes.y.low : 0;
    axes.y = {middle - 0.5, middle + 0.5};
  }
  const double margin = 0.05 * (axes.y.high - axes.y.low);
  axes.y.low -= margin;
  axes.y.high += margin;

  std::string svg =
      cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
          "\" font-family=\"sans-serif\" font-size=\"12\">\n<style>.grid{stroke:#ddd}"
          ".loss{fill:none;stroke:#1763b6;stroke-width:1.6}.band{fill:none;stroke:#a9c8ea;"
          "stroke-width:1.4}.validation{fill:#d2491f}text{fill:#333}</style>\n"
          "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"",
          kLeft, "\" y=\"22\" font-size=\"15\">", escape(title));
  if (std::isfinite(last)) svg += cat(": loss ", number(last));
  svg += "</text>\n" + draw_frame(axes) + draw_losses(axes, spans);
  for (const LossPoint& p : points) {
    if (!p.validation || !std::isfinite(*p.validation)) continue;
    svg += cat("<circle class=\"validation\" r=\"3\" cx=\"",
               number(axes.at_x(static_cast<double>(p.step))), "\" cy=\"",
               number(axes.at_y(*p.validation)), "\"><title>validation ", number(*p.validation),
               " at step ", p.step, "</title></circle>\n");
  }
  return svg + "</svg>\n";
}

void write_loss_curve(const std::string& metrics_path, const std::string& svg_path,
                      const std::string& title) {
  write_file_atomically(svg_path, loss_curve_svg(read_losses(metrics_path), title));
}

}  // namespace moetrain
