// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "cohort/core/atomic_file.h"
#include "cohort/core/error.h"
#include "cohort/estimator/train_and_evaluate.h"

namespace cohort::estimator {
namespace {

namespace fs = std::filesystem;

// The step of a folder of Estimator::export_values(); nullopt for other names.
std::optional<std::int64_t> exported_step(const std::string& name) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

void remove_old_exports(const std::string& folder, std::optional<std::int64_t> keep) {
  if (!keep) return;
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const auto step = exported_step(entry.path().filename().string())) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  for (std::ptrdiff_t i = 0; i < std::ssize(steps) - *keep; ++i) {
    std::error_code ignored;
    fs::remove_all(folder + "/" + std::to_string(steps[static_cast<std::size_t>(i)]), ignored);
  }
}

ExporterOptions checked(const ExporterOptions& options) {
  COHORT_CHECK(options.exports_to_keep.value_or(1) > 0, ErrorCode::invalid_argument,
               "[estimator.exporter] expected exports_to_keep > 0, got ",
               options.exports_to_keep.value_or(1), "; leave it out (nullopt) to keep all");
  return options;
}

std::string exported(const std::string& folder, const Exporter::Request& request,
                     std::optional<std::int64_t> keep) {
  std::string path = request.estimator.export_values(folder, request.result.checkpoint);
  remove_old_exports(folder, keep);
  return path;
}

}  // namespace

Exporter::Exporter(std::string name) : name_(std::move(name)) {
  const bool is_name =
      !name_.empty() && name_ != "." && name_ != ".." && name_.find('/') == std::string::npos;
  COHORT_CHECK(is_name, ErrorCode::invalid_argument,
               "[estimator.exporter] expected the name of a folder, got '", name_, "'");
}

std::optional<std::string> FinalExporter::export_model(const std::string& folder,
                                                       const Request& request) {
  if (!request.is_final) return std::nullopt;
  return exported(folder, request, std::nullopt);
}

LatestExporter::LatestExporter(std::string name, ExporterOptions options)
    : Exporter(std::move(name)), options_(checked(options)) {}

std::optional<std::string> LatestExporter::export_model(const std::string& folder,
                                                        const Request& request) {
  return exported(folder, request, options_.exports_to_keep);
}

BestExporter::BestExporter(std::string name, BestModelOptions best, ExporterOptions options)
    : Exporter(std::move(name)), best_(std::move(best)), options_(checked(options)) {}

BestExporter::~BestExporter() = default;

std::optional<std::string> BestExporter::export_model(const std::string& folder,
                                                      const Request& request) {
  const std::string state = folder + "/best.json";
  if (!std::exchange(is_restored_, true)) {
    std::ifstream file(state, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!text.empty()) best_.restore(text);
    evaluations_ = best_.best_epoch().value_or(-1) + 1;  // it was saved when it had the best one
  }
  if (!best_.update(evaluations_++, request.result.values)) return std::nullopt;
  std::string path = exported(folder, request, options_.exports_to_keep);
  write_atomically(state, best_.save(), "estimator.best_exporter");
  return path;
}

}  // namespace cohort::estimator
