// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summary_writer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cohort/data/record_io.h"
#include "cohort/function/function.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "event_file.pb.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using testing::throws_error;
using train::proto::Event;
using train::proto::Summary;

class SummaryWriterTest : public ::testing::Test {
 protected:
  std::vector<std::string> files(const std::string& words) const {
    std::vector<std::string> found;
    for (const std::string& name : folder.names()) {
      if (name.find(words) != std::string::npos) found.push_back(name);
    }
    return found;
  }
  // The events of the only event file.
  std::vector<Event> events() const {
    const std::vector<std::string> names = files("tfevents");
    EXPECT_THAT(names, SizeIs(1));
    RecordReader reader(folder.file(names.at(0)));
    std::vector<Event> events;
    while (const auto record = reader.try_next()) {
      EXPECT_TRUE(
          events.emplace_back().ParseFromArray(record->data(), static_cast<int>(record->size())));
    }
    return events;
  }
  // The value of the only event after the first.
  Summary::Value only_value() const {
    const std::vector<Event> all = events();
    EXPECT_THAT(all, SizeIs(2));
    EXPECT_EQ(all.at(1).step(), kStep);
    EXPECT_GT(all.at(1).wall_time(), 1.6e9);
    EXPECT_THAT(all.at(1).summary().value(), SizeIs(1));
    return all.at(1).summary().value(0);
  }
  std::vector<nlohmann::json> lines() const {
    std::ifstream in(folder.file(files("jsonl").at(0)));
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  static constexpr std::int64_t kStep = 17;
  testing::TemporaryFolder folder;
  const std::string path = folder.file("");
};

TEST_F(SummaryWriterTest, BeginsAFileThatOthersCanRead) {
  const SummaryWriter writer(path);
  EXPECT_THAT(files("").at(0), MatchesRegex("events.out.tfevents.[0-9]+\\..+\\." +
                                            std::to_string(::getpid()) + "\\.[0-9]+"));
  const std::vector<Event> all = events();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].file_version(), "brain.Event:2");
}

TEST_F(SummaryWriterTest, WritesScalarsInOrder) {
  SummaryWriter writer(path);
  for (int step = 0; step < 5000; ++step) writer.scalar("loss", 0.5 * step, step);
  writer.close();
  const std::vector<Event> all = events();
  ASSERT_THAT(all, SizeIs(5001));
  for (int step = 0; step < 5000; ++step) {
    const Event& event = all[static_cast<std::size_t>(step) + 1];
    EXPECT_EQ(event.step(), step);
    EXPECT_EQ(event.summary().value(0).tag(), "loss");
    EXPECT_EQ(event.summary().value(0).simple_value(), 0.5F * static_cast<float>(step));
  }
}

TEST_F(SummaryWriterTest, TakesTensorsOfOneNumber) {
  SummaryWriter writer(path);
  writer.scalar("half", at::full({1, 1}, 1.5, at::TensorOptions(at::kHalf)), kStep);
  writer.close();
  EXPECT_EQ(only_value().simple_value(), 1.5F);
}

TEST_F(SummaryWriterTest, WritesWhatWaitsWhenItIsFlushedOrDestroyed) {
  {
    SummaryWriter writer(path);
    writer.scalar("loss", 1, 0);
    writer.flush();
    EXPECT_THAT(events(), SizeIs(2));
    writer.scalar("loss", 1, 1);
  }
  EXPECT_THAT(events(), SizeIs(3));
}

TEST_F(SummaryWriterTest, TakesSummariesOfSeveralThreads) {
  {
    SummaryWriter writer(path, {.queue_elements_max = 7});
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int step = 0; step < 500; ++step) writer.scalar("loss", 1, step);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(events(), SizeIs(2001));
}

TEST_F(SummaryWriterTest, WritesALineOfJsonForEachScalar) {
  SummaryWriter writer(path, {.has_jsonl = true});
  writer.scalar("loss/\"train\"", 0.1, kStep);
  writer.text("note", "is no scalar", kStep);
  writer.scalar("bad", std::numeric_limits<double>::quiet_NaN(), kStep + 1);
  writer.scalar("bad", -std::numeric_limits<double>::infinity(), kStep + 2);
  writer.close();
  const std::vector<nlohmann::json> all = lines();
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].at("tag"), "loss/\"train\"");
  EXPECT_EQ(all[0].at("step"), kStep);
  EXPECT_EQ(all[0].at("value"), 0.1);  // with all digits
  EXPECT_EQ(all[0].at("wall_time"), events().at(1).wall_time());
  EXPECT_EQ(all[1].at("value"), "NaN");
  EXPECT_EQ(all[2].at("value"), "-Infinity");
  EXPECT_TRUE(std::isnan(events().at(3).summary().value(0).simple_value()));
}

TEST_F(SummaryWriterTest, WritesTextForItsPlugin) {
  SummaryWriter writer(path);
  writer.text("note", "# Größe\n10 µs", kStep);
  writer.close();
  const Summary::Value value = only_value();
  EXPECT_EQ(value.metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(value.tensor().dtype(), 7);
  EXPECT_THAT(value.tensor().string_val(), ElementsAre("# Größe\n10 µs"));
  EXPECT_EQ(value.tensor().tensor_shape().dim(0).size(), 1);
}

class SummaryHistogram : public SummaryWriterTest {
 protected:
  train::proto::HistogramProto histogram_of(const at::Tensor& values) {
    SummaryWriter writer(path);
    writer.histogram("weights", values, kStep);
    writer.close();
    return only_value().histo();
  }
};

TEST_F(SummaryHistogram, CountsEachNumberInTheRangeThatHasIt) {
  const at::Tensor values =
      at::cat({at::randn({5000}, at::kDouble) * 1e-3, at::randn({500}, at::kDouble) * 1e6,
               at::zeros({4}, at::kDouble)});
  const auto histogram = histogram_of(values.view({2, -1}));
  EXPECT_EQ(histogram.num(), 5504);
  EXPECT_EQ(histogram.min(), values.min().item<double>());
  EXPECT_EQ(histogram.max(), values.max().item<double>());
  EXPECT_NEAR(histogram.sum(), values.sum().item<double>(), 1);
  EXPECT_NEAR(histogram.sum_squares() / values.square().sum().item<double>(), 1, 1e-12);
  ASSERT_EQ(histogram.bucket_size(), histogram.bucket_limit_size());
  double before = -std::numeric_limits<double>::infinity();
  for (int i = 0; i < histogram.bucket_size(); ++i) {
    const double limit = histogram.bucket_limit(i);
    ASSERT_GT(limit, before);
    EXPECT_EQ(histogram.bucket(i),
              values.ge(before).logical_and(values.lt(limit)).sum().item<double>())
        << limit;
    before = limit;
  }
}

TEST_F(SummaryHistogram, JoinsEmptyRanges) {
  const auto histogram = histogram_of(at::full({4}, 2, at::TensorOptions(at::kInt)));
  ASSERT_EQ(histogram.bucket_size(), 3);
  EXPECT_THAT(histogram.bucket(), ElementsAre(0, 4, 0));
  EXPECT_LE(histogram.bucket_limit(0), 2);
  EXPECT_GT(histogram.bucket_limit(1), 2);
  EXPECT_LT(histogram.bucket_limit(1) / histogram.bucket_limit(0), 1.11);
  EXPECT_EQ(histogram.bucket_limit(2), std::numeric_limits<double>::max());
}

TEST_F(SummaryHistogram, HasTheEndsOfTheNumbers) {
  const double largest = std::numeric_limits<double>::max();
  const auto histogram = histogram_of(at::tensor({largest, -largest, 1e-300, -0.0}));
  double count = 0;
  for (const double each : histogram.bucket()) count += each;
  EXPECT_EQ(count, 4);
}

TEST_F(SummaryHistogram, RefusesWhatHasNoRange) {
  SummaryWriter writer(path);
  at::Tensor values = at::zeros({5});
  values[1] = std::numeric_limits<float>::infinity();
  values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(
      [&] { writer.histogram("w", values, 0); },
      throws_error(ErrorCode::invalid_argument, "finite numbers as histogram 'w', got 2 of 5"));
  EXPECT_THAT(
      [&] {
        writer.histogram("w", at::zeros({0, 3}), 0);
      },
      throws_error(ErrorCode::invalid_argument, "got float32[0, 3]"));
  EXPECT_THAT([&] { writer.histogram("w", at::Tensor(), 0); },
              throws_error(ErrorCode::invalid_argument, "got an undefined tensor"));
  writer.close();
  EXPECT_THAT(events(), SizeIs(1));
}

class SummaryImage : public SummaryWriterTest, public ::testing::WithParamInterface<int> {
 protected:
  static at::Tensor unpacked(const std::string& png, int channels) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    EXPECT_NE(::png_image_begin_read_from_memory(&image, png.data(), png.size()), 0);
    image.format = channels == 1   ? PNG_FORMAT_GRAY
                   : channels == 3 ? PNG_FORMAT_RGB
                                   : PNG_FORMAT_RGBA;
    at::Tensor pixels =
        at::empty({image.height, image.width, channels}, at::TensorOptions(at::kByte));
    EXPECT_NE(::png_image_finish_read(&image, nullptr, pixels.data_ptr(), 0, nullptr), 0);
    return pixels;
  }
};

TEST_P(SummaryImage, IsReadBackFromPng) {
  const int channels = GetParam();
  // Not in row-major order.
  const at::Tensor pixels = at::arange(5 * 7 * channels, at::kLong)
                                .to(at::kByte)
                                .view({channels, 5, 7})
                                .permute({1, 2, 0});
  SummaryWriter writer(path);
  writer.image("digit", pixels, kStep);
  writer.close();
  const Summary::Image image = only_value().image();
  EXPECT_EQ(image.height(), 5);
  EXPECT_EQ(image.width(), 7);
  EXPECT_EQ(image.colorspace(), channels);
  EXPECT_TRUE(at::equal(unpacked(image.encoded_image_string(), channels), pixels));
}

INSTANTIATE_TEST_SUITE_P(Channels, SummaryImage, ::testing::Values(1, 3, 4));

TEST_F(SummaryWriterTest, RefusesWhatIsNoImage) {
  SummaryWriter writer(path);
  const at::TensorOptions bytes(at::kByte);
  for (const at::Tensor& tensor :
       {at::zeros({3, 8, 8}, bytes), at::zeros({8, 8, 3}), at::zeros({8, 8}, bytes),
        at::zeros({0, 8, 3}, bytes), at::zeros({2, 8, 8, 3}, bytes), at::Tensor()}) {
    EXPECT_THAT(
        [&] { writer.image("digit", tensor, 0); },
        throws_error(ErrorCode::invalid_argument, "an image uint8[height, width, 1 or 3 or 4]"));
  }
}

TEST_F(SummaryWriterTest, RefusesBadCalls) {
  SummaryWriter writer(path);
  EXPECT_THAT([&] { writer.scalar("", 1, 0); },
              throws_error(ErrorCode::invalid_argument, "a name in UTF-8 for scalar(), got ''"));
  EXPECT_THAT([&] { writer.text("\xff", "a", 0); },
              throws_error(ErrorCode::invalid_argument, "a name in UTF-8 for text()"));
  EXPECT_THAT([&] { writer.text("a", "\xff", 0); },
              throws_error(ErrorCode::invalid_argument, "UTF-8 as text 'a'"));
  EXPECT_THAT([&] { writer.scalar("loss", at::zeros({2}), 0); },
              throws_error(ErrorCode::invalid_argument, "as scalar 'loss', got float32[2]"));
  writer.close();
  writer.close();
  EXPECT_THAT([&] { writer.scalar("loss", 1, 0); },
              throws_error(ErrorCode::failed_precondition, "which was closed"));
}

TEST_F(SummaryWriterTest, RefusesBadFoldersAndOptions) {
  EXPECT_THAT([] { const SummaryWriter writer(""); },
              throws_error(ErrorCode::invalid_argument, "the path of a folder, got ''"));
  folder.write("file", "");
  EXPECT_THAT([&] { const SummaryWriter writer(folder.file("file")); },
              throws_error(ErrorCode::not_found, "got: Not a directory; give"));
  EXPECT_THAT([&] { const SummaryWriter writer(folder.file("file/in")); },
              throws_error(ErrorCode::not_found, "to make folder '"));
  EXPECT_THAT([&] { const SummaryWriter writer(path, {.queue_elements_max = 0}); },
              throws_error(ErrorCode::invalid_argument, "queue_elements_max > 0"));
  EXPECT_THAT([&] { const SummaryWriter writer(path, {.timeout = Duration::zero()}); },
              throws_error(ErrorCode::invalid_argument, "SummaryWriterOptions::timeout > 0"));
}

using train::proto::GraphDef;
using train::proto::NodeDef;

class SummaryGraph : public SummaryWriterTest {
 protected:
  GraphDef written(const std::string& program) {
    SummaryWriter(folder.file("")).graph(program);
    const std::vector<Event> all = events();
    EXPECT_THAT(all, SizeIs(2));
    GraphDef graph;
    EXPECT_TRUE(graph.ParseFromString(all.at(1).graph_def()));
    return graph;
  }
  static const NodeDef& node(const GraphDef& graph, const std::string& name) {
    for (const NodeDef& each : graph.node()) {
      if (each.name() == name) return each;
    }
    throw Error(ErrorCode::not_found, name + " in " + graph.Utf8DebugString());
  }
  static std::vector<std::string> inputs(const GraphDef& graph, const std::string& name) {
    const NodeDef& found = node(graph, name);
    return {found.input().begin(), found.input().end()};
  }
};

TEST_F(SummaryGraph, HasTheOperatorsOfATracedStep) {
  OneDeviceStrategy strategy;
  const Variable w = strategy.variable("model/w", at::ones({3, 2}));
  const auto step = strategy.function([&](at::Tensor x) {
    const at::Tensor y = x.mm(w.tensor());
    w.assign_add(y.sum().expand({3, 2}));
    return y;
  });
  step(at::ones({4, 3}));
  const GraphDef graph = written(step.program());
  std::string mm;
  for (const NodeDef& each : graph.node()) {
    if (each.op() == "aten::mm") mm = each.name();
  }
  ASSERT_NE(mm, "") << step.program();
  EXPECT_THAT(inputs(graph, mm), ElementsAre(HasSubstr("input_"), "model/w"));
  EXPECT_THAT(inputs(graph, "return"), ElementsAre(mm));
  const auto& shapes = node(graph, mm).attr().at("_output_shapes").list();
  ASSERT_EQ(shapes.shape_size(), 1);
  EXPECT_EQ(shapes.shape(0).dim(0).size(), 4);
  EXPECT_EQ(shapes.shape(0).dim(1).size(), 2);
  bool is_changed = false;
  for (const NodeDef& each : graph.node()) {
    if (each.op() == "cohort::call") {
      is_changed = true;
      EXPECT_EQ(each.input(0), "model/w");
    }
  }
  EXPECT_TRUE(is_changed) << step.program();
}

// Each edge must lead to a node, or TensorBoard shows nothing.
TEST_F(SummaryGraph, NamesOnlyNodesThatItHas) {
  const GraphDef graph = written(
      "program 1 of 2:\n%0 = input: float32[2]\nreturn %0\n"
      "program 2 of 2:\n"
      "%0 = input: float32[4, ?]\n"
      "%1 = variable #0 'model/0.weight': float32[3], not read\n"
      "%2 = variable #1 'model/0 weight': float32[]\n"
      "%3 = constant: float32[2] {0.5, 1}\n"
      "#0 %4, %5 = aten::topk(%0, 2, -1, true, true): float32[4, 2], int64[4, 2]\n"
      "#1 [%6, none] = aten::_foreach_mul.List([%4, none, %2], [%3]): ?, ?\n"
      "#2 cohort::print(\"a (label) of %0\", %5)\n"
      "#3 cohort::apply(\"adam\", \"adam_1\", 1, %6, [%9])\n"
      "return %6, %5, none\n");
  std::vector<std::string> names;
  for (const NodeDef& each : graph.node()) names.push_back(each.name());
  EXPECT_THAT(names, ElementsAre("input_0", "model/0.weight", "model/0_weight", "constant_3",
                                 "topk_0", "n_foreach_mul_1", "print_2", "apply_3", "return"));
  EXPECT_THAT(inputs(graph, "n_foreach_mul_1"),
              ElementsAre("topk_0", "model/0_weight", "constant_3"));
  EXPECT_THAT(inputs(graph, "print_2"), ElementsAre("topk_0:1"));
  EXPECT_THAT(inputs(graph, "apply_3"), ElementsAre("model/0_weight", "n_foreach_mul_1"));
  EXPECT_THAT(inputs(graph, "return"), ElementsAre("n_foreach_mul_1", "topk_0:1"));
}

TEST_F(SummaryGraph, RefusesOtherTexts) {
  SummaryWriter summaries(folder.file(""));
  for (const char* const text : {"", "some text", "program 1 of 1:\n%0 = input: float32[2]\n",
                                 "%x = input: float32[2]\nreturn\n", "#0 %1 = aten::mm(%0\nreturn",
                                 "%0 = variable #0 'w\nreturn\n", "#0 %1\nreturn\n"})
    EXPECT_THAT([&] { summaries.graph(text); },
                throws_error(ErrorCode::invalid_argument, "Function::program()"))
        << text;
}

TEST_F(SummaryWriterTest, OfSeveralWorkersTheFirstOneWrites) {
  const InProcessWorkers workers(3);
  testing::on_workers<int>(3, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0"}});
    SummaryWriter writer(strategy, path);
    writer.scalar("rank", rank, kStep);
    writer.flush();
    writer.close();
    return 0;
  });
  EXPECT_EQ(only_value().simple_value(), 0);
}

// A worker that others may leave behind, or that is the first one that is left.
class WorkerOfAFakeStrategy final : public Strategy {
 public:
  std::string_view name() const override { return "fake"; }
  int num_replicas_in_sync() const override { return 2; }
  std::vector<std::string> worker_devices() const override { return {"CPU:0"}; }
  std::vector<std::string> parameter_devices() const override { return {"CPU:0"}; }
  bool is_first = false;

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& /*body*/) override {}
  std::shared_ptr<const input::InputHost> input_host() override { return nullptr; }
  internal::StrategyTraits traits() const override {
    return {.is_multi_worker = true, .is_first_worker = is_first};
  }
};

TEST_F(SummaryWriterTest, GoesOnInAWorkerThatBecomesTheFirst) {
  WorkerOfAFakeStrategy strategy;
  SummaryWriter writer(strategy, path);
  writer.scalar("loss", 1, kStep - 1);
  writer.flush();
  EXPECT_THAT(files("tfevents"), SizeIs(0));
  strategy.is_first = true;
  writer.scalar("loss", 2, kStep);
  writer.close();
  EXPECT_EQ(only_value().simple_value(), 2);
}

TEST_F(SummaryWriterTest, IsClosedInAWorkerThatBecomesTheFirstLater) {
  WorkerOfAFakeStrategy strategy;
  SummaryWriter writer(strategy, path);
  writer.close();
  strategy.is_first = true;
  EXPECT_THAT([&] { writer.scalar("loss", 1, 0); },
              throws_error(ErrorCode::failed_precondition, "which was closed"));
  EXPECT_THAT(files("tfevents"), SizeIs(0));
}

TEST_F(SummaryWriterTest, OfSeveralReplicasTheFirstOneWrites) {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  SummaryWriter writer(strategy, path);
  strategy.run([&] {
    writer.scalar("replica", 1 + get_replica_context()->replica_id_in_sync_group(), kStep);
  });
  writer.close();
  EXPECT_EQ(only_value().simple_value(), 1);
}

TEST_F(SummaryWriterTest, IsRefusedInsideAStepThatIsTraced) {
  OneDeviceStrategy strategy;
  SummaryWriter writer(strategy, path);
  auto step = strategy.function([&](at::Tensor x) {
    writer.scalar("loss", x.sum(), 0);
    return x * 2;
  });
  EXPECT_THAT([&] { step(at::zeros({2})); },
              throws_error(ErrorCode::failed_precondition,
                           "scalar('loss') outside of steps that are traced"));
}

}  // namespace
}  // namespace cohort
