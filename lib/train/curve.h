// The loss curve of a run as a small picture, so that it can be seen without any tool.
#pragma once

#include <string>
#include <vector>

#include "train/metrics.h"

namespace moetrain {

/// An SVG of training loss (line) and validation loss (dots) over steps. Long runs are drawn as the
/// mean and the range of equal spans of steps. Non-finite losses leave gaps. No points: an empty
/// frame.
std::string loss_curve_svg(const std::vector<LossPoint>& points, const std::string& title);

/// Draws the curve of `metrics_path` into `svg_path` (replaced atomically).
void write_loss_curve(const std::string& metrics_path, const std::string& svg_path,
                      const std::string& title);

}  // namespace moetrain
