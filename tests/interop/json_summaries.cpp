// SPDX-License-Identifier: Apache-2.0
#include "tests/interop/json_summaries.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "cohort/train/summary_writer.h"

namespace cohort::interop {
namespace {

struct Point {
  std::string tag;
  std::int64_t step = 0;
  Json value = {};
};

void write_image(SummaryWriter& writer, const Point& point) {
  std::string bytes = from_hex(point.value.at("bytes").get<std::string>());
  const auto sizes = point.value.at("sizes").get<std::vector<std::int64_t>>();
  writer.image(point.tag, at::from_blob(bytes.data(), sizes, at::TensorOptions(at::kByte)),
               point.step);
}

using Write = std::function<void(SummaryWriter&, const Point&)>;
const std::map<std::string, Write>& kinds_of_summary() {
  static const std::map<std::string, Write> kKinds{
      {"scalar",
       [](SummaryWriter& writer, const Point& point) {
         writer.scalar(point.tag, point.value.get<double>(), point.step);
       }},
      {"histogram",
       [](SummaryWriter& writer, const Point& point) {
         writer.histogram(point.tag, at::tensor(point.value.get<std::vector<double>>()),
                          point.step);
       }},
      {"text",
       [](SummaryWriter& writer, const Point& point) {
         writer.text(point.tag, point.value.get<std::string>(), point.step);
       }},
      {"image", write_image},
      {"graph", [](SummaryWriter& writer,
                   const Point& point) { writer.graph(point.value.get<std::string>()); }},
  };
  return kKinds;
}

}  // namespace

void write_summaries(const std::string& folder, const Json& summaries) {
  SummaryWriter writer(folder, {.has_jsonl = true});
  for (const Json& each : summaries) {
    kinds_of_summary().at(each.at("kind").get<std::string>())(
        writer,
        {each.at("tag").get<std::string>(), each.at("step").get<std::int64_t>(), each.at("value")});
  }
  writer.close();
}

}  // namespace cohort::interop
