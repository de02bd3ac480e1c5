"""A demo program: small matrices."""

from agentkit.runs.demo.program import Plant, Program

MATRIX = Program(
    name="matrix",
    about="Small dense matrices as lists of rows: product, transpose, determinant, linear systems.",
    files={
        "matrix/__init__.py": '''"""Matrices as lists of rows."""

from matrix.basic import identity, product, transpose
from matrix.solve import determinant, solve

__all__ = ["determinant", "identity", "product", "solve", "transpose"]
''',
        "matrix/basic.py": '''"""What needs no elimination."""


def shape(matrix):
    """(rows, columns)."""
    return len(matrix), len(matrix[0]) if matrix else 0


def identity(size):
    """Ones on the diagonal."""
    return [[1 if row == column else 0 for column in range(size)] for row in range(size)]


def transpose(matrix):
    """Rows become columns."""
    rows, columns = shape(matrix)
    return [[matrix[row][column] for row in range(rows)] for column in range(columns)]


def product(left, right):
    """The matrix product."""
    rows, inner = shape(left)
    inner_right, columns = shape(right)
    if inner != inner_right:
        raise ValueError(f"cannot multiply {inner} columns by {inner_right} rows")
    return [
        [sum(left[row][k] * right[k][column] for k in range(inner)) for column in range(columns)] for row in range(rows)
    ]
''',
        "matrix/solve.py": '''"""Elimination with fractions, so that results are exact."""

from fractions import Fraction


def triangular(matrix):
    """(upper triangular copy, sign of the row swaps)."""
    rows = [[Fraction(value) for value in row] for row in matrix]
    size = len(rows)
    sign = 1
    for column in range(size):
        pivot = next((row for row in range(column, size) if rows[row][column] != 0), None)
        if pivot is None:
            continue
        if pivot != column:
            rows[column], rows[pivot] = rows[pivot], rows[column]
            sign = -sign
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column])]
    return rows, sign


def determinant(matrix):
    """The determinant of a square matrix."""
    rows, sign = triangular(matrix)
    result = Fraction(sign)
    for i in range(len(rows)):
        result *= rows[i][i]
    return result


def solve(matrix, values):
    """The x with matrix x = values."""
    if determinant(matrix) == 0:
        raise ValueError("singular")
    rows, _ = triangular([list(row) + [value] for row, value in zip(matrix, values)])
    size = len(rows)
    x = [Fraction(0)] * size
    for i in range(size - 1, -1, -1):
        known = sum(rows[i][k] * x[k] for k in range(i + 1, size))
        x[i] = (rows[i][size] - known) / rows[i][i]
    return x
''',
    },
    tests="""import unittest

from matrix import determinant, identity, product, solve, transpose


class TestMatrix(unittest.TestCase):
    def test_identity(self):
        self.assertEqual(identity(2), [[1, 0], [0, 1]])

    def test_transpose(self):
        self.assertEqual(transpose([[1, 2, 3], [4, 5, 6]]), [[1, 4], [2, 5], [3, 6]])

    def test_product(self):
        self.assertEqual(product([[1, 2], [3, 4]], [[5], [6]]), [[17], [39]])

    def test_product_of_wrong_shapes(self):
        self.assertRaises(ValueError, product, [[1, 2]], [[1, 2]])

    def test_determinant(self):
        self.assertEqual(determinant([[0, 2], [3, 4]]), -6)
        self.assertEqual(determinant([[2, 0, 1], [1, 3, 2], [1, 1, 1]]), 0)

    def test_solve(self):
        self.assertEqual(solve([[2, 1], [1, 3]], [3, 4]), [1, 1])

    def test_singular(self):
        self.assertRaises(ValueError, solve, [[1, 2], [2, 4]], [1, 2])
""",
    held_out="""import random
import unittest

from matrix import determinant, identity, product, solve, transpose


class TestMatrixHeldOut(unittest.TestCase):
    def test_solutions_solve(self):
        dice = random.Random(3)
        for _ in range(40):
            size = dice.randrange(1, 5)
            m = [[dice.randrange(-4, 5) for _ in range(size)] for _ in range(size)]
            if determinant(m) == 0:
                continue
            b = [dice.randrange(9) for _ in range(size)]
            self.assertEqual(product(m, [[v] for v in solve(m, b)]), [[v] for v in b])

    def test_determinant_of_a_product(self):
        a, b = [[1, 2], [3, 5]], [[0, 1], [4, 7]]
        self.assertEqual(determinant(product(a, b)), determinant(a) * determinant(b))
        self.assertEqual(determinant(transpose(a)), determinant(a))

    def test_identity(self):
        m = [[1, 2, 3], [4, 5, 6], [7, 8, 10]]
        self.assertEqual(product(m, identity(3)), m)
        self.assertEqual(transpose([]), [])
""",
    plants=(
        Plant(
            "wrong name",
            "matrix/basic.py",
            "for column in range(columns)] for row",
            "for column in range(rows)] for row",
        ),
        Plant("wrong operator", "matrix/solve.py", "[a - factor * b for", "[a + factor * b for"),
        Plant("dropped statement", "matrix/solve.py", "            sign = -sign\n", ""),
        Plant("off by one", "matrix/solve.py", "range(size - 1, -1, -1)", "range(size - 1, 0, -1)"),
        Plant("inverted condition", "matrix/basic.py", "1 if row == column else 0", "1 if row != column else 0"),
        Plant("wrong index", "matrix/basic.py", "right[k][column]", "right[column][k]"),
    ),
)
