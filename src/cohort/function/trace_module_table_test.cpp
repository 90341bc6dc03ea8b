// SPDX-License-Identifier: Apache-2.0
// Checks the table of docs/modules.md: trains each module of torch::nn eagerly and by its program.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/function/tracer/module_rows_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::HasSubstr;
using Row = ModuleRow;
using Step = ModuleStep;

const std::vector<Row>& rows() {
  static const std::vector<Row> all = module_rows();
  return all;
}

// A row of the document.
struct Entry {
  std::string module;
  std::string use;
  std::string result;
  std::string remark;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> found;
    std::ifstream file(std::string(COHORT_SOURCE_DIR) + "/docs/modules.md");
    const std::regex row(R"(\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|)");
    auto trimmed = [](std::string text) {
      std::erase(text, '`');
      text.erase(0, text.find_first_not_of(' '));
      text.erase(text.find_last_not_of(' ') + 1);
      return text;
    };
    std::smatch match;
    for (std::string line; std::getline(file, line);) {
      if (!std::regex_match(line, match, row)) continue;
      found.push_back({match[1], trimmed(match[2]), trimmed(match[3]), match[4]});
    }
    return found;
  }();
  return all;
}

const Entry* find_entry(const Row& row) {
  for (const Entry& entry : entries())
    if (entry.module == row.module && entry.use == row.use) return &entry;
  return nullptr;
}

class TraceModuleTable : public TraceCase, public ::testing::WithParamInterface<Row> {
 protected:
  // Forward, a loss, backward, w -= 0.1 gradient: the loss and the inputs' gradients.
  static TraceBody step_of(const Step& step) {
    return [step](const Tensors& inputs) {
      Tensors leaves;
      for (const at::Tensor& input : inputs) {
        leaves.push_back(input.is_floating_point() ? input.clone().requires_grad_() : input);
      }
      at::Tensor value = step.value(leaves);
      at::Tensor weights = at::arange(1, value.numel() + 1, value.options());
      at::Tensor loss = (value.flatten() * weights).sum() / value.numel() + value.pow(2).sum();
      loss.backward();
      Tensors outputs{loss.detach()};
      for (const at::Tensor& leaf : leaves) {
        if (leaf.requires_grad() && leaf.grad().defined()) outputs.push_back(leaf.grad());
      }
      at::NoGradGuard off;
      for (const auto& [name, one] : step.parameters) {
        if (one.grad().defined()) one.sub_(one.grad(), 0.1);
        one.mutable_grad() = at::Tensor();
      }
      return outputs;
    };
  }
  void expect_same(const at::Tensor& actual, const at::Tensor& expected, bool is_exact,
                   const std::string& what) {
    if (is_exact) {
      EXPECT_TRUE(bits_equal(actual, expected)) << what;
    } else {
      EXPECT_TRUE(actual.allclose(expected, 1e-6, 1e-6, true)) << what;
    }
  }
  void expect_equal(const Step& step, const TraceBody& body, bool is_exact) {
    const Traced result = traced(step.inputs(100), step.inputs(101), body);
    const auto program = PreparedProgram::decode(result.bytes);
    Tensors registers = values_of(program->info());
    for (std::uint64_t i = 0; i < 5; ++i) {
      seed_default_generator(i);
      const Tensors expected = body(step.inputs(i));
      const Tensors actual = program->run(step.inputs(i), registers, host_, i);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t k = 0; k < expected.size(); ++k)
        expect_same(actual[k], expected[k], is_exact, "output " + std::to_string(k));
    }
    for (std::size_t i = 0; i < registers.size(); ++i) {
      const std::string& name = program->info().variables[i].name;
      expect_same(registers[i], tensors_.at(name).detach(), is_exact, name);
    }
  }
};

// If nothing needs a gradient, LibTorch uses other code for some modules.
TEST_P(TraceModuleTable, EvaluatesAsTheTableSays) {
  const Entry* entry = find_entry(GetParam());
  ASSERT_NE(entry, nullptr) << "docs/modules.md has no such row";
  if (entry->result == "refused") GTEST_SKIP() << "refused; IsAsTheTableSays checks how";
  seed_default_generator(5);
  const Step step = GetParam().make();
  for (const auto& [name, tensor] : step.parameters) variable(name, tensor, false);
  for (const auto& [name, tensor] : step.buffers) variable(name, tensor, false);
  step.eval();
  expect_equal(
      step,
      [step](const Tensors& inputs) {
        const at::NoGradGuard off;
        return Tensors{step.value(inputs)};
      },
      entry->result == "equal");
}

// The text between double quotes.
std::string quoted(const std::string& text) {
  const std::size_t begin = text.find('"') + 1;
  return text.substr(begin, text.find('"', begin) - begin);
}

TEST_P(TraceModuleTable, IsAsTheTableSays) {
  const Entry* entry = find_entry(GetParam());
  ASSERT_NE(entry, nullptr) << "docs/modules.md has no such row";
  seed_default_generator(5);
  const Step step = GetParam().make();
  // Refused modules keep their parameters on parameter servers, as those of a step would.
  const bool is_refused = entry->result == "refused";
  for (const auto& [name, tensor] : step.parameters) variable(name, tensor, is_refused);
  for (const auto& [name, tensor] : step.buffers) variable(name, tensor, false);
  if (!is_refused) {
    ASSERT_TRUE(entry->result == "equal" || entry->result == "1e-6") << entry->result;
    return expect_equal(step, step_of(step), entry->result == "equal");
  }
  ASSERT_THAT(entry->remark, HasSubstr("\"")) << "no words of the message";
  try {
    traced(step.inputs(100), step.inputs(101), step_of(step));
    ADD_FAILURE() << "it was traced";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(quoted(entry->remark)));
  }
}

std::string test_name(const ::testing::TestParamInfo<Row>& one) {
  std::string name = one.param.module;
  for (const char c : one.param.use)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Modules, TraceModuleTable, ::testing::ValuesIn(rows()), test_name);

TEST(ModuleTable, HasARowForEachUseThatIsTried) {
  for (const Entry& entry : entries()) {
    if (TORCH_VERSION_MAJOR < 2 && entry.remark.find("LibTorch 2") != std::string::npos) continue;
    const bool is_tried = std::any_of(rows().begin(), rows().end(), [&](const Row& row) {
      return row.module == entry.module && row.use == entry.use;
    });
    EXPECT_TRUE(is_tried) << entry.module << ' ' << entry.use;
  }
}

TEST(ModuleTable, HasEveryModuleOfThisLibTorch) {
  std::set<std::string> known;
  for (const Entry& entry : entries()) known.insert(entry.module);
  const std::regex declared(R"(^TORCH_MODULE(?:_IMPL)?\((\w+).*)");
  int count = 0;
  std::istringstream folders(COHORT_TORCH_INCLUDES);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path modules = folder + "/torch/nn/modules";
    if (!std::filesystem::is_directory(modules)) continue;
    for (const auto& file : std::filesystem::recursive_directory_iterator(modules)) {
      std::ifstream text(file.path());
      std::smatch match;
      for (std::string line; std::getline(text, line);) {
        if (!std::regex_match(line, match, declared)) continue;
        EXPECT_EQ(known.count(match[1]), 1) << match[1] << " in " << file.path();
        ++count;
      }
    }
  }
  EXPECT_GT(count, 100) << "LibTorch's headers were not found in " << COHORT_TORCH_INCLUDES;
}

}  // namespace
}  // namespace cohort::function
