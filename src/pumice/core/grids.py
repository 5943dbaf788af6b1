"""The grids of GGUF's iq1, iq2 and iq3 formats: a code of theirs stands for a row of four or eight small numbers.

Which rows a grid has was found by search when the formats were made: facts of the formats, which no rule gives. Each number of
a row is one of a few levels. A row is kept as the whole number whose digits are its levels, two or three bits each, the first
one lowest; a grid is sorted by these. The strings below are the gaps between them: 16-bit numbers, all lower bytes before all
upper ones, compressed by zlib, in base 85.
"""

from __future__ import annotations

import base64
import functools
import zlib

import numpy as np
from numpy.typing import NDArray

from pumice.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of `width` numbers, each of which is one of `levels`."""

    width: int
    levels: tuple[int, ...]
    stored: str

    @property
    def bits(self) -> int:
        """Bits of a digit."""
        return (len(self.levels) - 1).bit_length()


@functools.cache
def grid_digits(grid: Grid) -> NDArray[np.uint16]:
    """The rows of a grid, each as one number whose digits are levels.

    >>> grid_digits(IQ2_XXS)[:4].tolist(), len(grid_digits(IQ1))
    ([0, 2, 5, 8], 2048)
    """
    low, high = np.frombuffer(zlib.decompress(base64.b85decode(grid.stored)), np.uint8).reshape(2, -1).astype(np.int64)
    return (np.cumsum((low | high << 8) + 1) - 1).astype(np.uint16)


@functools.cache
def grid_rows(grid: Grid) -> NDArray[np.int8]:
    """The rows of a grid as numbers, [rows, width].

    >>> grid_rows(IQ2_XXS)[1].tolist(), grid_rows(IQ3_S)[-1].tolist()
    ([43, 8, 8, 8, 8, 8, 8, 8], [1, 1, 15, 15])
    """
    shifts = np.arange(grid.width, dtype=np.uint16) * np.uint16(grid.bits)
    digits = grid_digits(grid)[:, None] >> shifts & np.uint16((1 << grid.bits) - 1)
    rows: NDArray[np.int8] = np.array(grid.levels, np.int8)[digits]
    return rows


_THREE_LEVELS = (8, 25, 43)
IQ2_XXS = Grid(
    8,
    _THREE_LEVELS,
    "c-muNWMX1uW8!9HWfWuLX6Im%W@HzSW8!Afau!Z!l#j1t;uZjkv5G4&aSKNSX;mdLfpRu|XZdIrpoj!er)jnILBTgbb#n5`+$>q_;`*GbixqaUi?b-3P4}"
    "ED`ihBL-=U6W)`oSA?3OZejLYP<GyVgLiLP`|(k>S-UcU!oF*`3O(2{(42RW8%K675d>Fnb15*32C8Gve8c7<~&9P-L%=U``xXRo$ReDja7{9Dj!0d}w3$"
    "A5F{t4|L(<UXH;i?ML;UPg8^hel!b3-3X`ke~1BTVf`^kdfyTx3F|VN#>DVii$k?^B($|G=CE}-^@S&FcK-lid&iyiyD|1Bap!;ir)ezthO*Bl(52ufP5x"
    "#Yz|~(WJIW9U}R=s1Dnjk007(2J#h",
)
IQ2_XS = Grid(
    8,
    _THREE_LEVELS,
    "c-muNWMX1uV`5}t12QC_GzXJ3m}Fr~fQkT>K!mv2C78JLAxs4(ZWb-hGBiz$oC?S)1mqf+xJ4xy9jhV6aI;7Q4N;fp3}fQfcVI7*XV2wKKr@1yQw-S%ePP"
    "Bdpt1V$^I<|PY{Jq&WA*n7n`~#|X4DlntYk@e6&?n)0;ESi0Z6dR%u<Y1k6_}K5Zmt{;Fd1Y9m&opYGNdLRJ~k0k(CkE?J(CN*~}sn2Q*(yY(F$Sz^=(*;"
    "ue;UOy#uX-T+d<$2(WRh+AUTZ$tp;H-LhMaj$b~7$^kf73AaC%h_kRS;PtJ@Od<-GCEa*4B}N*3R6~f&lUZt&k`4tvFm{^?_5Lx=rgJ^hJpMoz`jgAo>7("
    "^=nqCFEqRSH=Y*obsq8W)s*I|!(y{Ekf<PI4QQc}q$B#y3EOy-N7t$El@rNur?KPi~l~I(lbOXCjBqOV0sQmnp^G1cDjI8DC(e;cA8Pg;fC<cs_t7E0W2u"
    "8x@Fyb^qltNE367&Tlb}l0;k_beQiJ*%Zv6_TtHCz!BHa9VXArb%pMSMvN",
)
IQ2_S = Grid(
    8,
    _THREE_LEVELS,
    "c-qZVJxc>Y5X~%mms^$un@cVpiC+<k2th$q#KJ-db^$q+z^R2qVkC_O#3q9OK<rWn?6k8G^4FZby}j(^!y@>VBD<NLdGp?zNdgD~lK?UC;)JJ#XC^o~rCt"
    "<t!zYtsCI`YvO(wBS5M8B|rTifb1@6j1E2xn{sx_3@{5%8__j$rwQAe5?q|&tQiT=bY$i#GOhNKKwuG9z3bE;J8V)527v9foQP?K^*=VVRqJb|Ph5KI;2a"
    ">)yo7S!W?l;vz+@Us1)t3n-Vmoce`7lf+;9?Ke#<6DqFQO1pFX6HKC(dkLfJ97x~c$?i{f_6wzsLjQuz?Bh}HkY_MVJ&y*fc!+yMy<eA2)zr;DAv$b{e4M"
    ")wHx@=j}K~SCSN%1WIE%X2k;$XP(S+3mW5e;=Xwz>W#KA~aB>>R>(HkfNSWnJH&0E%k2dP1tnUZOxGb((LLMxSMg)i9c$Avr@~TJ{#&KkAA*3${SoO(n@n"
    "aKK=6s3Ab=g4*>tWI5>5zxVmVc1%3b|Ka#oB9$KVlLmQB6J<yGh)nV?!(wFIQ%3&enVW?rr@6Y%tCi65suSzXUV>gADjymM~3<{a@w@KRGj)GRK&v3e;i$"
    "0!d>E%qR%Pmqnmge*#ZpN(l",
)
IQ3_XXS = Grid(
    4,
    (4, 12, 20, 28, 36, 44, 52, 62),
    "c-rNSQBQ<05QIA{U7&QS(AqP22i!@5hQx@^zNv4-|NnC={tY*oWM?w@MgciUfy)O_dYLk?sf!dd7*uH?tzd4Q&rJ=|oqLa-5X2qrBp7u9GhPqRR}CqxGjv"
    "<1?dn~|zY=BT03<Z`qzZ6CT4g=cN|T&?)qlan$73<r{6HA=$Zc><`_Xh-*Zt6jC3qvKY4?qC`tCB!W|FXHkS)eSyEw>LJfG8c5r0<M9OOJ+<|q9<&2Nirf"
    "NI@Zz4ZCLl`y#h?Wg+Z_X`w`4w?",
)
IQ3_S = Grid(
    4,
    (1, 3, 5, 7, 9, 11, 13, 15),
    "c-rle*-is73`KLj%{bc(okE92Dk>6!_p1N@X*lIGATNm{``%+ar9?<60Z6O@iig06#vdmpVz5;fO^iel66;8+G$|7dq>Kut%<)vx?kI?SMwd)zYd73~DsO"
    "kqVHFN&pjlHmvKXnMDVzp{l9LaF&`T_<=0K{jAUWPM`zKSy%K$CB>hvp#Ar;EwuF(}iY4AtIiO3-aXODh}=TWLH>r6(xlgV6Dt`o#xdE<&K&o%^YOoQM$0"
    "TvL8a|F@hZY<$8gSAa6Y^!p$sB^D}!#QyCB{~Uzv&AK<RU+IV!Y-Y($Y9_L9&*|X{C!`yljN+shGf*0*hVnVXPsTNK1u3TN(`rX`6vh6&S<wW+2gX<+v9^"
    "~(Wywkw%%ypjxS%hGR=`tbg|s=IyPtPexmjmt3G`%=cmu~fBy9O0cD;I!T",
)
# Times eight, as one eighth is added to them or subtracted.
IQ1 = Grid(
    8,
    (-8, 0, 8),
    "c-qxf?QYvf5Zo{FNS-ANZ9`k4EE{m4v<~t*N-Y8o(7<u+7=4C5dS~xQNpAbA2_VOS;QQFyot>Rs5{q!D4HvwK!qWv7jqh#=TcM^isl-ZQUi$rZykEr7Sc^"
    "reTH@blTy`N^P47bNg=mU{)~q0`rSvfEsUntdpX{wf90fAzqS)uXSKC9_;-;Z)N{Yo>poxdkgD%`@+TK&Ll;~hdVcTer2ObvaJD?zT7`B>7lxI)0z>RRtD"
    "^II8X#h0XLWwg*+;&!~!^d8Ka}su$VAUj#lnz^F63(eo!IJWKM>bD4aKjYD?>h}LwFjGaj?dC7b`oY!j1anH51ss&tpXtdlaD78z8KPR#!T-s6TmW1F>al"
    "-xMYi&>Qz%n?8{w=O=36hwo_2L%BgY$4;J)OjG@ge;`GY%haY6ra2ZkGhQfmD`hH&snR)Ox_}vABzQS8qPKUq^ZHKEA_@J;hz4oB+{N94yIt2*ngh@AOgc"
    "|1=1%ey;-HX)C#A>^2X8n(PI+&qqFf*qH&_2*uC9^jDcghp>B<DM3;d!Ilq|~5c*C9@whI5605$i6hHOsPeCQ^04RIj9kx*5;S$}A|fh;|9P8$Q2hPrkOB"
    "S)Vmz9>H?lC>Qv-=KCxvxF`)-4^Z7B=L<Q9WzJ)RQo_r{kXa>{sIyZ2kz&qGvmPOsoGfK%ZOA+#ciUvJbST*&+%D|+8oqSgB;Gby@gU#P`b_haJ!CzXv{D"
    "Pc*e38&Rf}9F1cDDR>Jr}9DR%!({Y*8a7x7L{tT2KkkR=XWGHn%-P(CH`MoaC=a`w}-Pa=w>f*wPiu$mXaXTpQYnhXsYeunbCAP)t$HjTcqWmh<3N8y_2Q"
    "_ITDs31v1ERny@0|#(h#-?CGX>)p9n4F=3YxpRY^$SviT+7hKa<T;omrx64xf<$v#zlh)>VxqwFodI;bU9Iuw`0?|LSM9vZ#x*XQw$k&=;MQ_xJLi&tRFE"
    "lPt^5yV-EpJj2?gNfTX%SQ6^88ykg)e^r(wi)&1zD_1PP>-C^+N$+OGHm0ZnUOl9F;51Je$#OK3XmlnB&hMDITYptOy=oLpveb#%d)qqO6DgW@nn@J|~de"
    "9K;VeO3^Ha1S&pi1q3=}4+9_`)l_K@qepl9;^Pqs-YTFhNK?vglAdl%u9gpH+7mMVij@oltx%w*KWpz3xs=S1Ft7+8golkOW!pSb&z{_ML?E?YnAN<&T1k"
    "s`}?p{1Y{ZI({s=zXleDK@jsiLkB#28oFX{5)OP_o6D0&(X3xYpJJqUQ*(K(i^sjmu1fT+{`hE*DGj0{qCZBw;<zBb4*#21U#+i?P`rMK-!;18brZ)&Y>!"
    "tkkiS&}@OPuuV}FAF=kvb-J|9U2",
)
