// The guided tour. Each step sets its own points. Numbers in double braces are measured (numbers.json): the smallest and
// the largest of three models that differ only in their seed. The build puts them in.

const TOUR = [
  {
    title: "Learning without training",
    text: "Each numbered point is one example: an x and its label y. Drag a point, or focus it and press the arrow keys. Both models change their curve at once. Their weights do not change.",
    ask: "What did the model learn, when no weight changed?",
    answer: "Training made the weights into a learning method. The prompt is the data that this method learns from. Now set ‘training’ to {{early.first}} steps: the same model before it has found a method. With 10 examples its error is {{early.ar.first}} (ar) and {{early.invicl.first}} (invicl); after training it is {{error.ar.10}} and {{error.invicl.10}}. An error of 1 is that of always answering 0.",
    state: {family: "line", seed: 12, n: 6, show: ["ar", "invicl"]},
  },
  {
    title: "The same examples in another order",
    text: "Press ‘Shuffle order’. Thin lines are the curves in 16 other orders. Then pull one point far away from the others, and shuffle again.",
    ask: "At first neither curve moves much. With one point far away, one of them moves. Which model follows a law, and which one a habit?",
    answer: "invicl follows a law: its mask makes it impossible that the order shows. ar has a habit, which it learned from prompts like those of its training. With 10 examples, another order moves ar's curve by {{order.ar.10}} (median over prompts of the largest move over 16 orders). With one label moved by 2 it is {{order.ar.outlier}}, with 20 examples {{order.ar.20}} (the one you see: {{shown.order.ar.20}}). For invicl it is at most {{order.invicl.most}}, which is rounding.",
    state: {family: "line", seed: 7, n: 8, show: ["ar", "invicl"], fan: true},
  },
  {
    title: "Read the mask",
    text: "The mask says who may look at whom: a filled cell means that the token of the row sees the token of the column. You see the mask of ar. Choose invicl above the mask to see the other one.",
    ask: "Exchange examples 1 and 2 in both rows and columns. Which mask stays the same?",
    answer: "invicl's. Each of its examples has the same rights as every other, so no order can show. In ar's mask example 1 sees nobody and example 3 sees two others: the order is written into it. The certificates below the mask come from the mask alone. What they rule out is ruled out for all weights; what they allow can happen, and need not.",
    state: {family: "smooth", seed: 3, n: 3, show: ["ar", "invicl"], picked: "ar"},
  },
  {
    title: "More examples than in training",
    text: "All models were trained on up to 10 examples. Here are 20; squares are beyond the training length. Move the slider from 8 to 40 and watch ar.",
    ask: "What breaks ar, its mask or its positions? Show ar-symmetric: the mask of ar, but every example stands at the same position.",
    answer: "Mostly its positions. Error with 20 examples: ar {{error.ar.20}} (the one you see: {{shown.error.ar.20}}), ar-symmetric {{error.ar-symmetric.20}}, invicl {{error.invicl.20}}. With 10 examples all three have about {{error.invicl.10}}. With 40: {{error.ar.40}}, {{error.ar-symmetric.40}}, {{error.invicl.40}}. The positions after 10 examples were never trained, so how much ar breaks is luck: it differs from seed to seed.",
    state: {family: "line", seed: 12, n: 20, show: ["ar", "invicl"], best: true},
  },
  {
    title: "Let everybody see everybody?",
    text: "Under prefix all tokens of the context see each other. Press ‘Swap two labels’: two examples exchange their y. Compare the two curves.",
    ask: "Why does prefix not move, not even in the last digit?",
    answer: "All x look alike, all y look alike, and everybody sees all of them. So the model sees a bag of x and a bag of y, and not which belongs to which: it is not paired. A swap moves prefix by at most {{swap.prefix}} (rounding) and invicl by {{swap.invicl}} (median). The error of prefix with 10 examples is {{error.prefix.10}}.",
    state: {family: "line", seed: 7, n: 8, show: ["prefix", "invicl"], picked: "prefix"},
  },
  {
    title: "Rings: what a model says at its own examples",
    text: "A ring is the model's answer at the x of an example. Pull one label up or down. Which rings follow? Its own: a leak. Later ones: causal. All others: interdependent. None: no answer at an example hears another label (boe, pfn). Show other strategies and try again.",
    ask: "prefix_others was trained on its rings, and they fit perfectly. Why is that loss worth nothing?",
    answer: "Its rings have an error of {{leak.context}}, but the noise of the labels alone is {{leak.floor}}: nobody can predict noise. The ring has seen the answer: y1 → x2 → x1. If a label is raised by 1, its own ring moves by {{leak.own}} and the others by {{leak.others}}. Its curve is still good ({{leak.query}} with 10 examples). The loss is worthless, not the model.",
    state: {family: "line", seed: 12, n: 6, show: ["prefix_others"], picked: "prefix_others", rings: true, updown: true},
  },
  {
    title: "Layer by layer",
    text: "Move the ‘layer’ slider from 0 to 4. You see what the read-out would say after each layer.",
    ask: "Why does invicl answer so late, though its query sees labels from layer 1 on?",
    answer: "Its mask does not force it: the query sees the labels of copy 1 in layer 1, and in layer 2 also what copy 1 has heard of the other examples. That the read-out, which was trained for the last layer, says so little before layer 3 is what training found: a habit, not a law. What the layers before do, these numbers do not say. Error after layers 0 to 4 with 10 examples: ar {{layer.ar.0}}, {{layer.ar.1}}, {{layer.ar.2}}, {{layer.ar.3}}, {{layer.ar.4}}; invicl {{layer.invicl.0}}, {{layer.invicl.1}}, {{layer.invicl.2}}, {{layer.invicl.3}}, {{layer.invicl.4}}.",
    state: {family: "line", seed: 7, n: 8, show: ["ar", "invicl"], picked: "invicl", layer: 2},
  },
  {
    title: "Design a mask",
    text: "Open the puzzles below the mask. First: of 512 ways in which 3 examples can see each other, only four are invariant. Find them. Second: paint a mask that has all four properties.",
    ask: "Why does invicl need a second copy of the examples?",
    answer: "With one copy, an answer at x1 that hears another label y2 also hears whatever y2 has heard; if all examples have the same rights, then y1 comes back to x1: a leak. `minicl search --count` shows it for all masks that treat examples alike: with one copy, none hears other labels without a leak. In a second copy x1' can read the first copies of the others, which have heard nobody.",
    state: {family: "line", seed: 12, n: 4, show: ["boe", "invicl"], picked: "boe", puzzles: true},
  },
];
